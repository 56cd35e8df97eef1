"""The loop's transport over Flower: real time, real clients."""

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
from offbeat.flower.log import TripLog
from offbeat.flower.nodes import Nodes
from offbeat.flower.puller import Puller, Watcher
from offbeat.flower.wire import Dialect, metrics
from offbeat.messages import Job, parts
from offbeat.payload import WireError
from offbeat.server.events import Arrival, Event, Lost, Tick
from offbeat.server.session import RunTransport

IDLE = 5.0  # seconds after which the loop is woken though nothing has happened
GRACE = 30.0  # seconds that Flower is given to report by itself that a message has expired

ERRORS = {
    0: "unknown error", 1: "the client app could not be loaded", 2: "the client app raised an exception",
    3: "no answer within the time to live", 4: "the reply is gone", 5: "the node is gone",
    6: "a mod refused", 7: "the app bundle is invalid", 8: "the client app has crashed",
}  # fmt: skip
"""Flower's codes."""
GONE = 5

_LOG = logging.getLogger("offbeat")


def check_rule(algorithm: Algorithm, key: str) -> None:
    """Refuse a rule that cannot be run this way."""
    if algorithm.network() is not None:
        raise ConfigError(
            f"{type(algorithm).__name__} needs clients that talk to each other; in Flower they talk to the server "
            "alone",
            key=key,
        )


@dataclass
class Flight:
    """A message that is out."""

    client: int
    sent: float
    deadline: float
    job: Job | None  # None: not training
    answered: Callable[[RecordDict | None], None] = lambda _: None


class Flower(RunTransport):
    """One job in flight a node.  What the loop sees is logged, so that it can be replayed."""

    real_time = True

    now: float = 0.0

    def __init__(self, grid: Grid, dialect: Dialect, nodes: Nodes, timeout: float) -> None:
        self.grid, self.dialect, self.nodes, self.timeout = grid, dialect, nodes, timeout
        self.log: TripLog | None = None  # for those that have a folder
        self.bytes_down = 0
        self.flights: dict[str, Flight] = {}
        self.numbers: Mapping[str, Any] = {}  # that came with the last update
        self._waiting: list[tuple[Job, float]] = []  # jobs of a run before this one, to be sent again …
        self._waits_until = math.inf  # … if their clients come back before this
        self._ready: collections.deque[tuple[Event, bytes]] = collections.deque()
        self._ticks: list[float] = []
        self._joining: set[int] = set()  # clients to be given a job when they are there
        self._origin = time.monotonic()
        self.puller = Puller(grid)
        self.watcher = Watcher(grid, self.puller.look_up)

    # What the loop asks for ------------------------------------------------------------------------------------

    def send(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._send(job)
            if self.log:
                self.log.sent(job.id, job.client, job.version, self.nodes.node_of(job.client), self.now)

    def wake(self, at: float, client: int | None = None) -> None:
        if client is not None:
            self._joining.add(client)  # at once: a real client idles at its own end, and answers when it likes
        elif self.now < at < math.inf and at not in self._ticks:
            heapq.heappush(self._ticks, at)

    def receive(self) -> Event:
        event, payload = self._next()
        self.now = max(self.now, self._clock())
        if self.log:
            self.log.event(event, payload, self.now)
        return event

    # What others ask for ---------------------------------------------------------------------------------------

    def start(self, least: int, timeout: float) -> int:
        """Wait until so many nodes are there, and say how many are."""
        self.watcher.start()
        deadline = time.monotonic() + timeout
        while len(self.watcher.seen or ()) < least:
            if time.monotonic() > deadline:
                there = len(self.watcher.seen or ())
                raise OffbeatError(f"{there} of {least} nodes have come within {timeout:g} s")
            time.sleep(0.2)
        return len(self.watcher.seen or ())

    def ask(self, client: int, content: RecordDict, kind: str, answered: Callable[[RecordDict | None], None]) -> None:
        """Something else than training, such as an evaluation; the client is not drawn meanwhile."""
        node = self.nodes.node_of(client)
        assert node is not None, "only clients that are there are asked"
        message = Message(content, node, kind, ttl=self.timeout)
        if self._push(message, Flight(client, self.now, self._clock() + self.timeout + GRACE, None, answered)):
            self.nodes.reserved |= {client}
            self._tell()
        else:
            answered(None)

    def close(self) -> None:
        self.watcher.close()
        self.puller.close()

    # How it is done --------------------------------------------------------------------------------------------

    def _clock(self) -> float:
        return time.monotonic() - self._origin

    def _send(self, job: Job, sent: float | None = None) -> None:
        node = self.nodes.node_of(job.client)
        sent = self.now if sent is None else sent
        if node is None:
            self._ready.append((Lost(job, sent, "the node is gone"), b""))
            return
        message = self.dialect.message(job, node, self.timeout)
        self.bytes_down += sum(record.count_bytes() for record in message.content.array_records.values())
        if not self._push(message, Flight(job.client, sent, self._clock() + self.timeout + GRACE, job)):
            self._ready.append((Lost(job, sent, "the SuperLink did not take the message"), b""))

    def _push(self, message: Message, flight: Flight) -> bool:
        try:
            (identity,) = list(self.grid.push_messages([message]))
        except Exception as error:  # whatever a connection may raise
            _LOG.warning("a message could not be sent: %s", error)
            return False
        if identity:
            self.flights[identity] = flight
            self.puller.watch(identity, message.metadata.dst_node_id)
        else:
            self.watcher.gone(message.metadata.dst_node_id)
        return bool(identity)

    def _next(self) -> tuple[Event, bytes]:
        """Wait for what happens next."""
        idle_at = self._clock() + IDLE
        while True:
            if self.adopt():
                return Tick(), b""
            self._send_again()
            if self._ready:
                return self._ready.popleft()
            now = self._clock()
            if self._ticks and self._ticks[0] <= now:
                heapq.heappop(self._ticks)
                return Tick(), b""
            if there := sorted(self._joining & self.nodes.available):
                self._joining.remove(there[0])
                return Tick(there[0]), b""
            if (event := self._expired(now)) is not None:
                return event, b""
            if now >= idle_at:
                return Tick(), b""
            try:
                until = min(idle_at, self._ticks[0] if self._ticks else math.inf)
                identity, reply = self.puller.found.get(timeout=max(0.0, min(until - now, 1.0)))
            except queue.Empty:
                continue
            if (found := self._taken(identity, reply)) is not None:
                return found

    def adopt(self) -> bool:
        """Take over who is there; True when the loop should know."""
        if self.watcher.seen is None:
            return False
        busy = {f.client for f in self.flights.values()}
        if not self.nodes.adopt(self.watcher.seen, busy):
            return False
        if self.nodes.waiting:
            _LOG.warning("%d nodes more than the %d clients asked for", len(self.nodes.waiting), self.nodes.clients)
        self.now = max(self.now, self._clock())
        self._tell()
        return True

    def _tell(self) -> None:
        if self.log:
            self.log.nodes(sorted(self.nodes.available), self.now)

    def _send_again(self) -> None:
        """Jobs that were out when the run before this one ended: again, once their clients are there."""
        now, left = self._clock(), []
        for job, sent in self._waiting:
            if job.client in self.nodes.online:
                self._send(job, sent)
            elif now > self._waits_until:
                self._ready.append((Lost(job, sent, "the node has not come back"), b""))
            else:
                left.append((job, sent))
        self._waiting = left

    def _expired(self, now: float) -> Event | None:
        """Flower reports what has expired; this is for messages of which it knows nothing any more."""
        for identity, flight in self.flights.items():
            if now > flight.deadline:
                return self._lost(identity, "no answer within the time to live")
        return None

    def _taken(self, identity: str, reply: Message | Exception | None) -> tuple[Event, bytes] | None:
        """What a reply means to the loop."""
        if isinstance(reply, Exception):
            raise OffbeatError(f"the SuperLink has not answered for {self.puller.patience:g} s: {reply}")
        if reply is None:
            return None
        flight = self.flights.get(identity)
        if flight is None or reply.metadata.reply_to_message_id not in ("", identity):
            _LOG.warning("a reply to %r, which nobody waits for, is left alone", reply.metadata.reply_to_message_id)
            return None
        if reply.has_error():
            code, reason = reply.error.code, (reply.error.reason or "").strip()
            text = f"{ERRORS.get(code, f'error {code}')}{': ' + reason if reason else ''}"
            if code == GONE and (node := self.nodes.node_of(flight.client)) is not None:
                self.watcher.gone(node)
                self.adopt()  # before its client is drawn once more
            return self._lost(identity, text), b""
        if flight.job is None:
            del self.flights[identity]
            self._release(flight)
            flight.answered(reply.content)
            return Tick(), b""
        try:
            update, payload = self.dialect.understand(flight.job, reply.content)
        except WireError as error:
            return self._lost(identity, str(error), unreadable=True), b""
        del self.flights[identity]
        self.numbers = metrics(reply.content)
        return Arrival(flight.job, update, flight.sent), payload

    def _lost(self, identity: str, reason: str, unreadable: bool = False) -> Event:
        flight = self.flights.pop(identity)
        self.puller.forget(identity)
        node = self.nodes.node_of(flight.client)
        _LOG.warning("client %d (node %s): %s", flight.client, node, reason)
        if flight.job is None:
            self._release(flight)
            flight.answered(None)
            return Tick()
        return Lost(flight.job, flight.sent, reason, unreadable)

    def _release(self, flight: Flight) -> None:
        self.nodes.reserved -= {flight.client}
        self._tell()

    # What is kept ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The jobs that are out: whoever goes on sends them again."""
        out = [(f.job, f.sent) for f in self.flights.values() if f.job is not None]
        out += [(event.job, event.sent) for event, _ in self._ready if isinstance(event, Lost)]
        return {
            "now": self.now,
            "bytes_down": self.bytes_down,
            "nodes": self.nodes.state_dict(),
            "out": [(parts(job), sent) for job, sent in (*out, *self._waiting)],
            "ticks": list(self._ticks),
            "joining": sorted(self._joining),
            "log": self.log.mark() if self.log else (0, 0),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.now, self.bytes_down = state["now"], state["bytes_down"]
        self._origin = time.monotonic() - self.now
        self.nodes.load_state_dict(state["nodes"])
        self._waiting = [(Job(**plain), sent) for plain, sent in state["out"]]
        self._waits_until = self.now + self.timeout
        self._ticks, self._joining = list(state["ticks"]), set(state["joining"])
        if self.log:
            self.log.cut(*state["log"])
            self._tell()  # nobody, until the SuperLink has been asked
