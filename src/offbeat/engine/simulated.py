"""A transport in virtual time that trains late and in bulk.

In virtual time a job's result is needed only when it arrives.  So nothing is trained until the earliest arrival needs
it; then the jobs in flight that are not trained yet are trained together, in one stack.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Protocol

from offbeat.engine.events import Arrival, Event, Lost, Tick
from offbeat.messages import Job, Update
from offbeat.world import World


class Trainer(Protocol):
    """Does the clients' local work."""

    bulk: int  # most jobs that are worth training at once

    def upload_bytes(self, job: Job) -> int:
        """What the job's update will cost on the wire."""

    def download_bytes(self, job: Job) -> int: ...

    def train(self, jobs: Sequence[Job]) -> list[Update]: ...


_LOST, _ARRIVAL, _TICK, _JOIN = range(4)
_Entry = tuple[float, int, int, int]  # time, sequence number, kind, job or client: ties are broken by order of sending


class Simulated:
    """The event heap, the virtual clock, and the jobs in flight."""

    def __init__(self, world: World, trainer: Trainer, seed: int) -> None:
        self.world, self.trainer, self.seed = world, trainer, seed
        self.now = 0.0
        self.ready: list[_Entry] = []  # a heap: events that can be handled as they are
        self.untrained: list[_Entry] = []  # a heap: arrivals whose jobs have still to be trained
        self.sequence = 0
        self.flying: dict[int, tuple[Job, float]] = {}  # with the moment they left
        self.asked: dict[int, Job] = {}  # wanted, and not delivered yet
        self.trained: dict[int, Update] = {}
        self.bytes_down = 0
        self._ticks: set[float] = set()

    def send(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            down = self.trainer.download_bytes(job)
            end, arrives = self.world.trip(self.seed, job, down, self.trainer.upload_bytes(job), self.now)
            self.bytes_down += down
            self.flying[job.id] = job, self.now
            if arrives:
                self._push(self.untrained, end, _ARRIVAL, job.id)
            else:
                self._push(self.ready, end, _LOST, job.id)

    def wake(self, at: float, client: int | None = None) -> None:
        if client is not None:
            self._push(self.ready, at, _JOIN, client)
        elif math.isfinite(at) and at not in self._ticks:
            self._ticks.add(at)
            self._push(self.ready, at, _TICK, 0)

    @property
    def next_at(self) -> float:
        """The time of the next event."""
        return min((heap[0][0] for heap in (self.ready, self.untrained) if heap), default=math.inf)

    def wanted(self) -> list[Job]:
        """The jobs to be trained before the next event can be handled; none when it needs no training.

        They are the untrained ones that arrive first, in this order, as many as are worth training at once; the same
        ones until they are delivered.  Whoever asks may train them elsewhere, together with those of other runs.
        """
        if not self.asked and self.untrained and (not self.ready or self.untrained[0] < self.ready[0]):
            for _ in range(min(self.trainer.bulk, len(self.untrained))):
                entry = heapq.heappop(self.untrained)
                heapq.heappush(self.ready, entry)
                self.asked[entry[3]] = self.flying[entry[3]][0]
        return list(self.asked.values())

    def deliver(self, updates: Sequence[Update]) -> None:
        """Hand in what came of jobs that were wanted."""
        for update in updates:
            del self.asked[update.job]
            self.trained[update.job] = update

    def receive(self) -> Event:
        while jobs := self.wanted():
            self.deliver(self.trainer.train(jobs))
        if not self.ready:
            raise RuntimeError("nothing is in flight and nobody will wake up: the federation has come to rest")
        time, _, kind, number = heapq.heappop(self.ready)
        self.now = max(self.now, time)
        if kind == _JOIN:
            return Tick(number)
        if kind == _TICK:
            self._ticks.discard(time)
            return Tick()
        job, sent = self.flying.pop(number)
        return Arrival(job, self.trained.pop(number), sent) if kind == _ARRIVAL else Lost(job, sent)

    def _push(self, heap: list[_Entry], at: float, kind: int, number: int) -> None:
        self.sequence += 1
        heapq.heappush(heap, (at, self.sequence, kind, number))

    def state_dict(self) -> dict[str, Any]:
        """Everything in flight.  Results that are trained already are kept: training them again in another stack could
        round differently."""
        return {
            "now": self.now,
            "heap": [*self.ready, *self.untrained],
            "sequence": self.sequence,
            "bytes_down": self.bytes_down,
            "flying": [(_plain(job), sent) for job, sent in self.flying.values()],
            "trained": [_plain(update) for update in self.trained.values()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.now, self.sequence, self.bytes_down = state["now"], state["sequence"], state["bytes_down"]
        self.flying = {job["id"]: (Job(**job), sent) for job, sent in state["flying"]}
        self.trained = {update["job"]: Update(**update) for update in state["trained"]}
        self.asked = {}
        self.ready, self.untrained = [], []
        for entry in sorted(state["heap"]):  # a sorted list is a heap
            _, _, kind, number = entry
            (self.untrained if kind == _ARRIVAL and number not in self.trained else self.ready).append(entry)
        self._ticks = {at for at, _, kind, _ in self.ready if kind == _TICK}


def _plain(message: Job | Update) -> dict[str, Any]:
    """A message as a dict whose tensors are still shared (`dataclasses.asdict` would copy them)."""
    return {field.name: getattr(message, field.name) for field in fields(message)}
