"""Background threads that fetch replies and watch which nodes are online.

Flower's `pull_messages` blocks until a ready reply has been transferred completely, so one slow uplink would delay all
other replies. Every message is therefore pulled by a separate call in one of a few threads: often while it is young,
less often the longer it is pending.
"""

from __future__ import annotations

import contextlib
import heapq
import queue
import threading
import time
from collections.abc import Callable, Collection

from flwr.app import Message
from flwr.serverapp import Grid

THREADS = 16
MIN_INTERVAL, MAX_INTERVAL = 0.1, 3.0  # seconds between two pulls of the same message
INTERVAL_FRACTION = 0.05  # of the time for which a message is pending
NODES_SECONDS = 2.0  # between two queries of the nodes
OUTAGE_SECONDS = 300.0  # for which the SuperLink may be unreachable, for example while it restarts

PulledReply = tuple[str, Message | Exception | None]


class Puller:
    """Puts (message id, reply) into the queue `replies`.

    (id, error) means that the SuperLink has been unreachable for too long, ("", None) that other nodes are online.

    Args:
        grid: Flower's grid.
        outage_seconds: How long the SuperLink may be unreachable.
    """

    def __init__(self, grid: Grid, outage_seconds: float = OUTAGE_SECONDS) -> None:
        self.grid, self.outage_seconds = grid, outage_seconds
        # Bounded because replies are large: threads wait until the server has handled some.
        self.replies: queue.Queue[PulledReply] = queue.Queue(maxsize=2 * THREADS)
        self._due: list[tuple[float, str]] = []
        self._sent_at: dict[str, float] = {}  # messages that are not in here are no longer wanted
        self._node: dict[str, int] = {}  # destination of each message
        self._failing_since: float | None = None  # since when every call fails
        self._condition = threading.Condition()
        self._closed = False
        self._threads: list[threading.Thread] = []

    def add(self, message: str, node: int) -> None:
        """Start to pull the reply to a message that was sent to a node."""
        with self._condition:
            self._sent_at[message], self._node[message] = time.monotonic(), node
            heapq.heappush(self._due, (time.monotonic() + MIN_INTERVAL, message))
            if len(self._threads) < min(THREADS, len(self._sent_at)):
                self._threads.append(threading.Thread(target=self._run, name="offbeat-pull", daemon=True))
                self._threads[-1].start()
            self._condition.notify()

    def discard(self, message: str) -> None:
        """Stop to pull the reply to a message."""
        with self._condition:
            self._sent_at.pop(message, None)
            self._node.pop(message, None)

    def nodes_changed(self, gone: Collection[int]) -> None:
        """Wake up the reader of `replies` because other nodes are online.

        Messages to nodes that are gone are pulled immediately: Flower reports a message as lost only while its node is
        offline, and the node may soon return.
        """
        with self._condition:
            now = time.monotonic()
            self._due = [(now if self._node.get(m) in gone else at, m) for at, m in self._due]
            heapq.heapify(self._due)
            self._condition.notify()
        with contextlib.suppress(queue.Full):
            self.replies.put_nowait(("", None))

    def close(self) -> None:
        """Let the threads end."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _run(self) -> None:
        while (message := self._next()) is not None:
            try:
                replies = list(self.grid.pull_messages([message]))
            except Exception as error:  # a connection may raise anything
                self._handle_failure(message, error)
                continue
            self._failing_since = None
            for reply in replies:
                self._put((message, reply))
            if replies:
                self.discard(message)
            else:
                self._reschedule(message)

    def _put(self, reply: PulledReply) -> None:
        """Wait for space in the queue, unless the puller is closed."""
        while not self._closed:
            with contextlib.suppress(queue.Full):
                self.replies.put(reply, timeout=1.0)
                return

    def _next(self) -> str | None:
        """Wait for the next message that is due; return None when the puller is closed."""
        with self._condition:
            while not self._closed:
                while self._due and self._due[0][1] not in self._sent_at:
                    heapq.heappop(self._due)
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._due)[1]
                self._condition.wait(wait)
            return None

    def _reschedule(self, message: str) -> None:
        with self._condition:
            if message in self._sent_at:
                now = time.monotonic()
                interval = min(MAX_INTERVAL, max(MIN_INTERVAL, INTERVAL_FRACTION * (now - self._sent_at[message])))
                heapq.heappush(self._due, (now + interval, message))
                self._condition.notify()

    def _handle_failure(self, message: str, error: Exception) -> None:
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        if now - self._failing_since > self.outage_seconds:
            self._put((message, error))
        else:
            time.sleep(MIN_INTERVAL)
            self._reschedule(message)


class NodeWatcher:
    """Queries regularly which nodes are online.

    Args:
        grid: Flower's grid.
        on_change: Called with the nodes that are gone whenever other nodes are online.
    """

    def __init__(self, grid: Grid, on_change: Callable[[Collection[int]], None]) -> None:
        self.grid, self.on_change = grid, on_change
        self.online: frozenset[int] | None = None
        """Ids of the nodes that are online; None before the first query."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offbeat-nodes", daemon=True)

    def start(self) -> None:
        """Query the nodes now and then regularly."""
        self.query()
        self._thread.start()

    def query(self) -> None:
        """Query the nodes; while the SuperLink is unreachable, nodes count as unchanged."""
        with contextlib.suppress(Exception):
            online = frozenset(self.grid.get_node_ids())
            if online != self.online:
                gone, self.online = (self.online or frozenset()) - online, online
                self.on_change(gone)

    def mark_offline(self, node: int) -> None:
        """Remove a node that is known to be gone, until the next query."""
        self.online = (self.online or frozenset()) - {node}

    def close(self) -> None:
        """Let the thread end."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(NODES_SECONDS):
            self.query()
