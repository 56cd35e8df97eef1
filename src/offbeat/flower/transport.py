"""The transport of the server loop over Flower: real clients, in real time."""

from __future__ import annotations

import collections
import heapq
import logging
import math
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from offbeat.algorithms import Algorithm
from offbeat.errors import ConfigError, OffbeatError
from offbeat.flower.log import EventLog
from offbeat.flower.nodes import NodeRegistry
from offbeat.flower.puller import NodeWatcher, Puller
from offbeat.flower.wire import WireFormat, metrics
from offbeat.messages import Job, parts
from offbeat.payload import WireError
from offbeat.server.events import Arrival, Event, Lost, Tick
from offbeat.server.session import RunTransport

IDLE_SECONDS = 5.0  # after which the loop receives a tick although nothing has happened
GRACE_SECONDS = 30.0  # for Flower to report an expired message before the transport gives it up

EXPIRED, NODE_UNAVAILABLE = 3, 5
ERRORS = {
    0: "unknown error", 1: "the client app could not be loaded", 2: "the client app raised an exception",
    EXPIRED: "no reply within the timeout", 4: "the reply is no longer available",
    NODE_UNAVAILABLE: "the node went offline", 6: "a mod rejected the message", 7: "the app bundle is invalid",
    8: "the client app crashed",
}  # fmt: skip
"""Meaning of Flower's error codes."""

_LOG = logging.getLogger("offbeat")


def check_algorithm(algorithm: Algorithm, key: str) -> None:
    """Refuse an algorithm that cannot run on Flower.

    Args:
        algorithm: The server rule.
        key: Name of the setting, for the message.

    Raises:
        ConfigError: The algorithm is decentralized.
    """
    if algorithm.network() is not None:
        raise ConfigError(
            f"{type(algorithm).__name__} needs clients that communicate with each other, but Flower's clients "
            "communicate with the server only; run it in the simulator",
            key=key,
        )


@dataclass
class PendingMessage:
    """A message without a reply."""

    client: int
    sent: float
    deadline: float
    job: Job | None
    """The job, or None if the message asks for something other than training."""
    on_reply: Callable[[RecordDict | None], None] = lambda _: None
    """Called with the content of the reply to a message without a job, or None if there is none."""


class FlowerTransport(RunTransport):
    """Sends jobs to Flower's nodes, at most one per node, and logs all events so that they can be replayed.

    Args:
        grid: Flower's grid.
        wire: Format of the messages.
        nodes: Assignment of nodes to clients.
        timeout: Seconds until a client must have replied.
    """

    real_time = True

    now: float = 0.0

    def __init__(self, grid: Grid, wire: WireFormat, nodes: NodeRegistry, timeout: float) -> None:
        self.grid, self.wire, self.nodes, self.timeout = grid, wire, nodes, timeout
        self.log: EventLog | None = None
        """The event log, if the run has a folder."""
        self.bytes_down = 0
        self.pending: dict[str, PendingMessage] = {}
        self.reply_metrics: Mapping[str, Any] = {}
        """Metrics of the latest update."""
        self._to_resend: list[tuple[Job, float]] = []  # jobs that were in flight at the checkpoint …
        self._resend_until = math.inf  # … which are lost if their clients do not return in time
        self._ready: collections.deque[tuple[Event, bytes]] = collections.deque()
        self._ticks: list[float] = []
        self._joining: set[int] = set()  # anarchic clients that receive a job as soon as they are available
        self._origin = time.monotonic()
        self.puller = Puller(grid)
        self.watcher = NodeWatcher(grid, self.puller.nodes_changed)

    # Interface to the loop ---------------------------------------------------------------------------------------

    def send(self, jobs: Sequence[Job]) -> None:
        """Send jobs to their clients."""
        for job in jobs:
            self._send(job)
            if self.log:
                self.log.sent(job.id, job.client, job.version, self.nodes.node_of(job.client), self.now)

    def wake(self, at: float, client: int | None = None) -> None:
        """Request a tick; an anarchic client joins immediately because a real one decides itself when to reply."""
        if client is not None:
            self._joining.add(client)
        elif self.now < at < math.inf and at not in self._ticks:
            heapq.heappush(self._ticks, at)

    def receive(self) -> Event:
        """Wait for the next event."""
        event, payload = self._next()
        self.now = max(self.now, self._clock())
        if self.log:
            self.log.event(event, payload, self.now)
        return event

    # Interface to the server ---------------------------------------------------------------------------------------

    def start(self, min_nodes: int, timeout: float) -> int:
        """Wait until enough nodes are online and return their number.

        Raises:
            OffbeatError: There are fewer nodes after `timeout` seconds.
        """
        self.watcher.start()
        deadline = time.monotonic() + timeout
        while (online := len(self.watcher.online or ())) < min_nodes:
            if time.monotonic() > deadline:
                raise OffbeatError(f"only {online} of {min_nodes} nodes connected within {timeout:g} s")
            time.sleep(0.2)
        return online

    def ask(self, client: int, content: RecordDict, kind: str, on_reply: Callable[[RecordDict | None], None]) -> None:
        """Send a message other than a job, such as an evaluation; the client is not sampled until it has replied.

        Args:
            client: An online client.
            content: Content of the message.
            kind: Flower's message type.
            on_reply: Called with the content of the reply, or None if there is none.
        """
        node = self.nodes.node_of(client)
        assert node is not None, "the client must be online"
        message = Message(content, node, kind, ttl=self.timeout)
        if self._push(message, PendingMessage(client, self.now, self._deadline(), None, on_reply)):
            self.nodes.reserved |= {client}
            self._log_nodes()
        else:
            on_reply(None)

    def update_nodes(self) -> bool:
        """Assign the nodes that are online to clients and return whether the set of clients has changed."""
        if self.watcher.online is None:
            return False
        busy = {message.client for message in self.pending.values()}
        if not self.nodes.update(self.watcher.online, busy):
            return False
        if self.nodes.unassigned:
            _LOG.warning(
                "%d nodes have to wait: the run has %d clients", len(self.nodes.unassigned), self.nodes.clients
            )
        self.now = max(self.now, self._clock())
        self._log_nodes()
        return True

    def close(self) -> None:
        """Let the background threads end."""
        self.watcher.close()
        self.puller.close()

    # Messages ------------------------------------------------------------------------------------------------------

    def _clock(self) -> float:
        return time.monotonic() - self._origin

    def _deadline(self) -> float:
        return self._clock() + self.timeout + GRACE_SECONDS

    def _log_nodes(self) -> None:
        if self.log:
            self.log.nodes(sorted(self.nodes.available), self.now)

    def _send(self, job: Job, sent: float | None = None) -> None:
        node = self.nodes.node_of(job.client)
        sent = self.now if sent is None else sent
        if node is None:
            self._ready.append((Lost(job, sent, ERRORS[NODE_UNAVAILABLE]), b""))
            return
        message = self.wire.message(job, node, self.timeout)
        self.bytes_down += sum(record.count_bytes() for record in message.content.array_records.values())
        if not self._push(message, PendingMessage(job.client, sent, self._deadline(), job)):
            self._ready.append((Lost(job, sent, "the SuperLink did not accept the message"), b""))

    def _push(self, message: Message, pending: PendingMessage) -> bool:
        try:
            (message_id,) = list(self.grid.push_messages([message]))
        except Exception as error:  # a connection may raise anything
            _LOG.warning("could not send a message: %s", error)
            return False
        if message_id:
            self.pending[message_id] = pending
            self.puller.add(message_id, message.metadata.dst_node_id)
        else:
            self.watcher.mark_offline(message.metadata.dst_node_id)
        return bool(message_id)

    def _next(self) -> tuple[Event, bytes]:
        """Wait for the next event and return it with the payload of its update."""
        idle_at = self._clock() + IDLE_SECONDS
        while True:
            if self.update_nodes():
                return Tick(), b""
            self._resend()
            if self._ready:
                return self._ready.popleft()
            now = self._clock()
            if self._ticks and self._ticks[0] <= now:
                heapq.heappop(self._ticks)
                return Tick(), b""
            if joining := sorted(self._joining & self.nodes.available):
                self._joining.remove(joining[0])
                return Tick(joining[0]), b""
            if (event := self._expire(now)) is not None:
                return event, b""
            if now >= idle_at:
                return Tick(), b""
            try:
                until = min(idle_at, self._ticks[0] if self._ticks else math.inf)
                message_id, reply = self.puller.replies.get(timeout=max(0.0, min(until - now, 1.0)))
            except queue.Empty:
                continue
            if (handled := self._handle_reply(message_id, reply)) is not None:
                return handled

    def _resend(self) -> None:
        """Send the jobs that were in flight at the checkpoint again, once their clients are online."""
        now, remaining = self._clock(), []
        for job, sent in self._to_resend:
            if job.client in self.nodes.online:
                self._send(job, sent)
            elif now > self._resend_until:
                self._ready.append((Lost(job, sent, "the node did not return after the restart"), b""))
            else:
                remaining.append((job, sent))
        self._to_resend = remaining

    def _expire(self, now: float) -> Event | None:
        """Give up a message past its deadline: Flower reports expired messages, unless it has lost them itself."""
        for message_id, message in self.pending.items():
            if now > message.deadline:
                return self._lose(message_id, ERRORS[EXPIRED])
        return None

    def _handle_reply(self, message_id: str, reply: Message | Exception | None) -> tuple[Event, bytes] | None:
        """Return the event that follows from a reply and the payload of its update, or None if there is no event."""
        if isinstance(reply, Exception):
            raise OffbeatError(f"the SuperLink has been unreachable for {self.puller.outage_seconds:g} s: {reply}")
        if reply is None:
            return None
        pending = self.pending.get(message_id)
        if pending is None or reply.metadata.reply_to_message_id not in ("", message_id):
            _LOG.warning("ignoring an unexpected reply to message %r", reply.metadata.reply_to_message_id)
            return None
        if reply.has_error():
            return self._handle_error(message_id, pending, reply), b""
        if pending.job is None:
            del self.pending[message_id]
            self._release(pending)
            pending.on_reply(reply.content)
            return Tick(), b""
        try:
            update, payload = self.wire.decode_reply(pending.job, reply.content)
        except WireError as error:
            return self._lose(message_id, str(error), unreadable=True), b""
        del self.pending[message_id]
        self.reply_metrics = metrics(reply.content)
        return Arrival(pending.job, update, pending.sent), payload

    def _handle_error(self, message_id: str, pending: PendingMessage, reply: Message) -> Event:
        code, reason = reply.error.code, (reply.error.reason or "").strip()
        text = f"{ERRORS.get(code, f'error {code}')}{': ' + reason if reason else ''}"
        if code == NODE_UNAVAILABLE and (node := self.nodes.node_of(pending.client)) is not None:
            self.watcher.mark_offline(node)
            self.update_nodes()  # before the scheduler can sample its client again
        return self._lose(message_id, text)

    def _lose(self, message_id: str, reason: str, unreadable: bool = False) -> Event:
        """Drop a message and return the event for it."""
        message = self.pending.pop(message_id)
        self.puller.discard(message_id)
        _LOG.warning("client %d (node %s): %s", message.client, self.nodes.node_of(message.client), reason)
        if message.job is None:
            self._release(message)
            message.on_reply(None)
            return Tick()
        return Lost(message.job, message.sent, reason, unreadable)

    def _release(self, message: PendingMessage) -> None:
        self.nodes.reserved -= {message.client}
        self._log_nodes()

    # Checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with the jobs in flight, which a resumed run sends again."""
        jobs = [(message.job, message.sent) for message in self.pending.values() if message.job is not None]
        jobs += [(event.job, event.sent) for event, _ in self._ready if isinstance(event, Lost)]
        return {
            "now": self.now,
            "bytes_down": self.bytes_down,
            "nodes": self.nodes.state_dict(),
            "jobs": [(parts(job), sent) for job, sent in (*jobs, *self._to_resend)],
            "ticks": list(self._ticks),
            "joining": sorted(self._joining),
            "log": self.log.sync() if self.log else (0, 0),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state and truncate the event log to the checkpoint; all nodes count as offline at first."""
        self.now, self.bytes_down = state["now"], state["bytes_down"]
        self._origin = time.monotonic() - self.now
        self.nodes.load_state_dict(state["nodes"])
        self._to_resend = [(Job(**fields), sent) for fields, sent in state["jobs"]]
        self._resend_until = self.now + self.timeout
        self._ticks, self._joining = list(state["ticks"]), set(state["joining"])
        if self.log:
            self.log.truncate(*state["log"])
            self._log_nodes()
