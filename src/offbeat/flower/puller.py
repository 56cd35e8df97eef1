"""Fetching replies, each by a call of its own.

Flower's `pull_messages` waits until a reply that is ready has come over the line whole, so that one slow uplink would
hold up all others.  Here every message is asked for separately by one of a few threads, often while it is young and
more rarely the longer it is out.
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
SOONEST, LATEST = 0.1, 3.0  # seconds between two looks for the same reply
SHARE = 0.05  # of the time that it has been out
WATCH_SECONDS = 2.0  # between two questions who is there
PATIENCE = 300.0  # seconds for which nobody may answer: a SuperLink that is restarted takes a while

Found = tuple[str, Message | Exception | None]


class Puller:
    """Puts (message id, reply) into `found`; (id, an error) when the SuperLink has been silent for too long."""

    def __init__(self, grid: Grid, patience: float = PATIENCE) -> None:
        self.grid, self.patience = grid, patience
        self.found: queue.Queue[Found] = queue.Queue(maxsize=2 * THREADS)  # replies are large: threads wait, too
        self._due: list[tuple[float, str]] = []
        self._since: dict[str, float] = {}  # when each message was sent; not in here: nobody wants it any more
        self._node: dict[str, int] = {}  # to whom
        self._failing: float | None = None  # since when every call fails
        self._change = threading.Condition()
        self._ended = False
        self._threads: list[threading.Thread] = []

    def watch(self, message: str, node: int) -> None:
        with self._change:
            self._since[message], self._node[message] = time.monotonic(), node
            heapq.heappush(self._due, (time.monotonic() + SOONEST, message))
            if len(self._threads) < min(THREADS, len(self._since)):
                self._threads.append(threading.Thread(target=self._work, name="offbeat-pull", daemon=True))
                self._threads[-1].start()
            self._change.notify()

    def forget(self, message: str) -> None:
        with self._change:
            self._since.pop(message, None)
            self._node.pop(message, None)

    def look_up(self, gone: Collection[int]) -> None:
        """Who is there has changed: let whoever waits for `found` see.

        Messages to nodes that are gone are asked for at once: Flower says that a message is lost only while its node
        is away, and the node may soon be back.
        """
        with self._change:
            now = time.monotonic()
            self._due = [(now if self._node.get(m) in gone else at, m) for at, m in self._due]
            heapq.heapify(self._due)
            self._change.notify()
        with contextlib.suppress(queue.Full):
            self.found.put_nowait(("", None))

    def close(self) -> None:
        with self._change:
            self._ended = True
            self._change.notify_all()

    def _work(self) -> None:
        while (message := self._next()) is not None:
            try:
                replies = list(self.grid.pull_messages([message]))
            except Exception as error:  # whatever a connection may raise
                self._failed(message, error)
                continue
            self._failing = None
            for reply in replies:
                self._put((message, reply))
            if replies:
                self.forget(message)
            else:
                self._again(message)

    def _put(self, found: Found) -> None:
        """Wait for room, unless nobody takes anything out any more."""
        while not self._ended:
            with contextlib.suppress(queue.Full):
                self.found.put(found, timeout=1.0)
                return

    def _next(self) -> str | None:
        """Wait for the next message that is due."""
        with self._change:
            while not self._ended:
                while self._due and self._due[0][1] not in self._since:
                    heapq.heappop(self._due)
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._due)[1]
                self._change.wait(wait)
            return None

    def _again(self, message: str) -> None:
        with self._change:
            if message in self._since:
                now = time.monotonic()
                pause = min(LATEST, max(SOONEST, SHARE * (now - self._since[message])))
                heapq.heappush(self._due, (now + pause, message))
                self._change.notify()

    def _failed(self, message: str, error: Exception) -> None:
        now = time.monotonic()
        self._failing = self._failing or now
        if now - self._failing > self.patience:
            self._put((message, error))
        else:
            time.sleep(SOONEST)
            self._again(message)


class Watcher:
    """Asks who is there, every now and then, in a thread of its own."""

    def __init__(self, grid: Grid, changed: Callable[[Collection[int]], None]) -> None:
        self.grid, self.changed = grid, changed  # told who is gone
        self.seen: frozenset[int] | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="offbeat-nodes", daemon=True)

    def start(self) -> None:
        self.look()
        self._thread.start()

    def look(self) -> None:
        with contextlib.suppress(Exception):  # the SuperLink is away: who was there is taken to be there still
            seen = frozenset(self.grid.get_node_ids())
            if seen != self.seen:
                gone, self.seen = (self.seen or frozenset()) - seen, seen
                self.changed(gone)

    def gone(self, node: int) -> None:
        """Known from elsewhere, and until the next look."""
        self.seen = (self.seen or frozenset()) - {node}

    def close(self) -> None:
        self._end.set()

    def _work(self) -> None:
        while not self._end.wait(WATCH_SECONDS):
            self.look()
