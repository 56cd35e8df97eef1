"""A network that does not keep its word, between the loop and simulated clients.

Every update passes as the bytes that a real client would send (`offbeat.payload`), so what is damaged meets the same
decoder and the same gate as in a deployment.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from offbeat.compression import Raw
from offbeat.messages import Job, Update, record
from offbeat.payload import WireError, decode_update, encode_update, pack, unpack
from offbeat.random import exponential, key, stream, uniform
from offbeat.server.events import Arrival, Event, Lost, Tick
from offbeat.server.session import RunTransport
from offbeat.simulation.transport import SimulatedTransport
from offbeat.vectors import Layout

RATE = 0.05  # of the messages, for each of FATES
VANISHING = 0.1  # share of the clients that are never heard of again, from a random moment on
FATES = ("job dropped", "reply dropped", "duplicated", "delayed", "reordered", "corrupted")


@record
class _Reply:
    """What a client sends, and the bytes of it; no update: the moment at which it is waited for no longer."""

    job: Job
    sent: float
    update: Update | None = None
    payload: bytes = b""


class Unreliable(RunTransport):
    """Carries messages, or does worse, as the seed says.

    A job that is not answered within the time-out is given up, as a deployment does; what comes of it later is reported
    all the same, so that the loop's own guard has something to do.
    """

    untrusted = True

    def __init__(
        self,
        inner: SimulatedTransport,
        layout: Layout,
        clients: int,
        seed: int,
        timeout: float,
        until: float,
        rate: float,
    ) -> None:
        self.inner, self.layout, self.seed, self.timeout, self.rate = inner, layout, seed, timeout, rate
        self.counts: Counter[str] = Counter()
        self.surplus = 0  # updates reported of jobs that nobody waits for any more
        self.awaited: set[int] = set()  # jobs that the server waits for
        self.damaged: set[int] = set()  # jobs whose update did not come as it was sent
        self.vanished = _vanishing(clients, seed, until) if rate else {}
        self._gone: set[int] = set()  # of them, those whose silence was noticed
        self._own: list[tuple[float, int, _Reply]] = []  # a heap: time, sequence number, what happens then
        self._held: list[_Reply] = []  # to be overtaken
        self._numbers = itertools.count()
        self._last = b""  # payload that came through whole

    # What a run asks for ---------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.inner.now

    @property
    def bytes_down(self) -> int:  # type: ignore[override]
        return self.inner.bytes_down

    @property
    def next_at(self) -> float:
        return min(self.inner.next_at, self._own[0][0]) if self._own else self.inner.next_at

    def wanted(self) -> list[Job]:
        return self.inner.wanted()

    def deliver(self, updates: Sequence[Update]) -> None:
        self.inner.deliver(updates)

    def wake(self, at: float, client: int | None = None) -> None:
        self.inner.wake(at, client)

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError("runs with such a network are not resumed")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError("runs with such a network are not resumed")

    def send(self, jobs: Sequence[Job]) -> None:
        through = []
        for job in jobs:
            self.awaited.add(job.id)
            self._later(self.now + self.timeout, _Reply(job, self.now))
            if self._silent(job.client):
                continue
            if self._fate(job) == "job dropped":
                self.counts["job dropped"] += 1
            else:
                through.append(job)
        self.inner.send(through)

    def receive(self) -> Event:
        while True:
            if self._own and self._own[0][0] <= self.inner.next_at:
                at, _, reply = heapq.heappop(self._own)
                self.inner.now = max(self.inner.now, at)
                event = self._reported(reply)
            else:
                event = self._passed(self.inner.receive())
            if event is not None:
                return event

    # What becomes of messages ----------------------------------------------------------------------------------

    def _passed(self, event: Event) -> Event | None:
        """What has come out of the simulated world."""
        if isinstance(event, Tick):
            return event
        job = event.job
        if isinstance(event, Lost):
            return event if self._settled(job) else None
        if self._silent(job.client):
            return None
        fate, k = self._fate(job), key(self.seed, "how", job.id)
        reply = _Reply(job, event.sent, event.update, encode_update(event.update, Raw(), self.layout, job))
        if fate is not None:
            self.counts[fate] += 1
        if fate == "reply dropped":
            return None
        if fate == "delayed":  # half of them beyond the time-out
            self._later(self.now + 2 * uniform(k) * self.timeout, reply)
            return None
        if fate == "reordered":
            self._held.append(reply)
            return None
        if fate == "duplicated":
            self._later(self.now + 0.2 * exponential(k) * self.timeout, reply)
        elif fate == "corrupted":
            name, corrupt = CORRUPTIONS[int(uniform(k) * len(CORRUPTIONS))]
            self.counts[f"corrupted: {name}"] += 1
            sent, reply = reply, dataclasses.replace(reply, payload=corrupt(reply.payload, stream(k), self._last))
            if reply.payload != sent.payload:  # zeros may have been zeros before
                self.damaged.add(job.id)
        else:
            self._last = reply.payload
        for overtaken in self._held:
            self._later(self.now, overtaken)
        self._held.clear()
        return self._reported(reply)

    def _reported(self, reply: _Reply) -> Event | None:
        """What the server hears of it, if anything."""
        job, update, awaited = reply.job, reply.update, self._settled(reply.job)
        if update is None:
            return Lost(job, reply.sent, "no answer") if awaited else None
        try:
            came = decode_update(reply.payload, Raw(), self.layout, job)
        except WireError as error:
            return Lost(job, reply.sent, str(error), unreadable=True) if awaited else None
        self.surplus += not awaited
        return Arrival(job, dataclasses.replace(came, wire_bytes=update.wire_bytes), reply.sent)

    def _settled(self, job: Job) -> bool:
        """The server waits no longer; False when it did not before."""
        awaited = job.id in self.awaited
        self.awaited.discard(job.id)
        return awaited

    def _later(self, at: float, reply: _Reply) -> None:
        heapq.heappush(self._own, (at, next(self._numbers), reply))

    def _fate(self, job: Job) -> str | None:
        place = int(uniform(key(self.seed, "fate", job.id)) / self.rate) if self.rate else len(FATES)
        return FATES[place] if place < len(FATES) else None

    def _silent(self, client: int) -> bool:
        """Whether it has vanished by now."""
        gone = self.now >= self.vanished.get(client, float("inf"))
        if gone and client not in self._gone:
            self._gone.add(client)
            self.counts["vanished"] += 1
        return gone


def _vanishing(clients: int, seed: int, until: float) -> dict[int, float]:
    """Who vanishes, and when: a share of the clients, one at least."""
    order = stream(seed, "vanish").permutation(clients).tolist()
    return {client: uniform(key(seed, "when", client)) * until for client in order[: max(1, int(VANISHING * clients))]}


# How bytes are damaged ------------------------------------------------------------------------------------------------

Corrupt = Callable[[bytes, np.random.Generator, bytes], bytes]


def _flipped(payload: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    changed = bytearray(payload)
    for _ in range(int(rng.integers(1, 9))):
        changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _cut(payload: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    return payload[: int(rng.integers(len(payload)))]


def _zeroed(payload: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    begin = int(rng.integers(len(payload)))
    return payload[:begin] + bytes(len(payload) - begin)


def _not_finite(payload: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    head, parts = unpack(payload)
    values = np.frombuffer(parts["delta"], np.float32).copy()
    values[int(rng.integers(len(values)))] = rng.choice([np.nan, np.inf, -np.inf])
    return pack(head, parts | {"delta": values.tobytes()})


def _too_short(payload: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    head, parts = unpack(payload)
    return pack(head, parts | {"delta": parts["delta"][:-4]})


def _boasting(payload: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    head, parts = unpack(payload)
    return pack(head | {"steps": head["steps"] + int(rng.integers(1, 10**6))}, parts)


def _from_the_future(payload: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    head, parts = unpack(payload)
    return pack(head | {"version": head["version"] + int(rng.integers(1, 10**6))}, parts)


def _of_another(payload: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    return other or payload[:-1]


CORRUPTIONS: tuple[tuple[str, Corrupt], ...] = (
    ("bits flipped", _flipped),
    ("cut off", _cut),
    ("zeros at the end", _zeroed),
    ("a number that is not finite", _not_finite),
    ("a vector too short", _too_short),
    ("more steps than asked", _boasting),
    ("a version that is not there yet", _from_the_future),
    ("the payload of another job", _of_another),
)
"""The first three are a network's, and fail the checksum; the others come with a right one."""
