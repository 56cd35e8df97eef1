"""An unreliable network between the server loop and simulated clients.

Every update travels as the bytes that a real client would send (`offbeat.payload`), so damaged updates meet the same
decoder and the same validation as in a deployment.
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

RATE = 0.05  # share of the messages that suffers each of FATES
VANISHING = 0.1  # share of the clients that vanish at a random moment
FATES = ("job dropped", "reply dropped", "duplicated", "delayed", "reordered", "corrupted")


@record
class _Reply:
    """A client's update and its payload; without an update, the moment at which the server gives the job up."""

    job: Job
    sent: float
    update: Update | None = None
    payload: bytes = b""


class UnreliableTransport(RunTransport):
    """A transport that drops, duplicates, delays, reorders and damages messages as the seed determines.

    A job that is not answered within the timeout is given up, as in a deployment. Its late update is reported all the
    same, so that the loop's own check for unsolicited updates is exercised.

    Args:
        inner: The reliable simulation.
        layout: Layout of the model, for the payloads.
        clients: Number of clients.
        seed: Seed of the faults.
        timeout: Virtual seconds after which a job is given up.
        until: Virtual seconds within which clients vanish.
        rate: Share of the messages that suffers each of FATES.
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
        self.surplus = 0  # updates reported for jobs that the server no longer waits for
        self.awaited: set[int] = set()  # jobs that the server waits for
        self.damaged: set[int] = set()  # jobs whose payload was changed on the way
        self.vanished = _vanishing(clients, seed, until) if rate else {}
        self._counted_as_vanished: set[int] = set()
        self._scheduled: list[tuple[float, int, _Reply]] = []  # a heap: time, sequence number, what happens then
        self._held_back: list[_Reply] = []  # replies that the next one overtakes
        self._numbers = itertools.count()
        self._last_payload = b""  # the last one that arrived intact

    # Transport -------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The virtual time."""
        return self.inner.now

    @property
    def bytes_down(self) -> int:  # type: ignore[override]
        """Bytes sent to clients so far."""
        return self.inner.bytes_down

    @property
    def next_at(self) -> float:
        """Time of the next event."""
        return min(self.inner.next_at, self._scheduled[0][0]) if self._scheduled else self.inner.next_at

    def wanted(self) -> list[Job]:
        """Return the jobs that must be trained before the next event."""
        return self.inner.wanted()

    def deliver(self, updates: Sequence[Update]) -> None:
        """Hand over the updates of wanted jobs."""
        self.inner.deliver(updates)

    def wake(self, at: float, client: int | None = None) -> None:
        """Request a tick at the given time."""
        self.inner.wake(at, client)

    def state_dict(self) -> dict[str, Any]:
        """Refuse: these runs write no checkpoints."""
        raise NotImplementedError("runs with an unreliable network cannot be resumed")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuse: these runs write no checkpoints."""
        raise NotImplementedError("runs with an unreliable network cannot be resumed")

    def send(self, jobs: Sequence[Job]) -> None:
        """Send jobs, some of which get lost."""
        through = []
        for job in jobs:
            self.awaited.add(job.id)
            self._schedule(self.now + self.timeout, _Reply(job, self.now))
            if self._vanished_by_now(job.client):
                continue
            if self._fate(job) == "job dropped":
                self.counts["job dropped"] += 1
            else:
                through.append(job)
        self.inner.send(through)

    def receive(self) -> Event:
        """Return the next event that reaches the server."""
        while True:
            if self._scheduled and self._scheduled[0][0] <= self.inner.next_at:
                at, _, reply = heapq.heappop(self._scheduled)
                self.inner.now = max(self.inner.now, at)
                event = self._report(reply)
            else:
                event = self._pass_on(self.inner.receive())
            if event is not None:
                return event

    # Messages --------------------------------------------------------------------------------------------------

    def _pass_on(self, event: Event) -> Event | None:
        """Return what the server receives for an event of the simulation, or None if nothing arrives now."""
        if isinstance(event, Tick):
            return event
        job = event.job
        if isinstance(event, Lost):
            return event if self._settle(job) else None
        if self._vanished_by_now(job.client):
            return None
        fate, k = self._fate(job), key(self.seed, "how", job.id)
        reply = _Reply(job, event.sent, event.update, encode_update(event.update, Raw(), self.layout, job))
        if fate is not None:
            self.counts[fate] += 1
        if fate == "reply dropped":
            return None
        if fate == "delayed":  # half of them beyond the timeout
            self._schedule(self.now + 2 * uniform(k) * self.timeout, reply)
            return None
        if fate == "reordered":
            self._held_back.append(reply)
            return None
        if fate == "duplicated":
            self._schedule(self.now + 0.2 * exponential(k) * self.timeout, reply)
        elif fate == "corrupted":
            name, corrupt = CORRUPTIONS[int(uniform(k) * len(CORRUPTIONS))]
            self.counts[f"corrupted: {name}"] += 1
            payload = corrupt(reply.payload, stream(k), self._last_payload)
            if payload != reply.payload:  # zeros may replace zeros
                self.damaged.add(job.id)
            reply = dataclasses.replace(reply, payload=payload)
        else:
            self._last_payload = reply.payload
        for overtaken in self._held_back:
            self._schedule(self.now, overtaken)
        self._held_back.clear()
        return self._report(reply)

    def _report(self, reply: _Reply) -> Event | None:
        """Return the event that a reply causes at the server, or None if it causes none."""
        job, update, awaited = reply.job, reply.update, self._settle(reply.job)
        if update is None:
            return Lost(job, reply.sent, "no answer") if awaited else None
        try:
            came = decode_update(reply.payload, Raw(), self.layout, job)
        except WireError as error:
            return Lost(job, reply.sent, str(error), unreadable=True) if awaited else None
        self.surplus += not awaited
        return Arrival(job, dataclasses.replace(came, wire_bytes=update.wire_bytes), reply.sent)

    def _settle(self, job: Job) -> bool:
        """Stop waiting for a job and return whether the server was waiting for it."""
        awaited = job.id in self.awaited
        self.awaited.discard(job.id)
        return awaited

    def _schedule(self, at: float, reply: _Reply) -> None:
        heapq.heappush(self._scheduled, (at, next(self._numbers), reply))

    def _fate(self, job: Job) -> str | None:
        place = int(uniform(key(self.seed, "fate", job.id)) / self.rate) if self.rate else len(FATES)
        return FATES[place] if place < len(FATES) else None

    def _vanished_by_now(self, client: int) -> bool:
        """Return whether a client has vanished, and count it the first time."""
        gone = self.now >= self.vanished.get(client, float("inf"))
        if gone and client not in self._counted_as_vanished:
            self._counted_as_vanished.add(client)
            self.counts["vanished"] += 1
        return gone


def _vanishing(clients: int, seed: int, until: float) -> dict[int, float]:
    """Return which clients vanish and when: a share of them, at least one."""
    order = stream(seed, "vanish").permutation(clients).tolist()
    return {client: uniform(key(seed, "when", client)) * until for client in order[: max(1, int(VANISHING * clients))]}


# Corruptions ----------------------------------------------------------------------------------------------------------

Corrupt = Callable[[bytes, np.random.Generator, bytes], bytes]
"""Damages a payload; the second payload is that of another job."""


def _flip_bits(payload: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    changed = bytearray(payload)
    for _ in range(int(rng.integers(1, 9))):
        changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _truncate(payload: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    return payload[: int(rng.integers(len(payload)))]


def _zero_tail(payload: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    begin = int(rng.integers(len(payload)))
    return payload[:begin] + bytes(len(payload) - begin)


def _make_non_finite(payload: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    head, parts = unpack(payload)
    values = np.frombuffer(parts["delta"], np.float32).copy()
    values[int(rng.integers(len(values)))] = rng.choice([np.nan, np.inf, -np.inf])
    return pack(head, parts | {"delta": values.tobytes()})


def _shorten_vector(payload: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    head, parts = unpack(payload)
    return pack(head, parts | {"delta": parts["delta"][:-4]})


def _claim_more_steps(payload: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    head, parts = unpack(payload)
    return pack(head | {"steps": head["steps"] + int(rng.integers(1, 10**6))}, parts)


def _claim_future_version(payload: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    head, parts = unpack(payload)
    return pack(head | {"version": head["version"] + int(rng.integers(1, 10**6))}, parts)


def _replace_payload(payload: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    return other or payload[:-1]


CORRUPTIONS: tuple[tuple[str, Corrupt], ...] = (
    ("flipped bits", _flip_bits),
    ("truncated", _truncate),
    ("trailing zeros", _zero_tail),
    ("value not finite", _make_non_finite),
    ("vector too short", _shorten_vector),
    ("more steps than requested", _claim_more_steps),
    ("future version", _claim_future_version),
    ("payload of another job", _replace_payload),
)
"""The first three are damages of a network and fail the checksum; the others carry a valid one."""
