"""A transport in virtual time that trains late and in bulk.

In virtual time a job's result is needed only when it arrives.  So nothing is trained until the earliest arrival needs
it; then the jobs in flight that are not trained yet are trained together, in one stack.
"""

from __future__ import annotations

import heapq
import math
import operator
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


_Entry = tuple[float, int, Job | Lost | Tick, float]
"""Time; sequence number, which breaks ties by order of sending; what happens (a job: it arrives); when it was sent."""


class Simulated:
    """The virtual clock, and two heaps of what will happen: what can be handled at once and what must be trained first.

    An entry is made once and moved from heap to heap.  Were a bulk's events made at once, each bulk would set off
    Python's garbage collector, which costs more than the bookkeeping.
    """

    def __init__(self, world: World, trainer: Trainer, seed: int) -> None:
        self.world, self.trainer, self.seed = world, trainer, seed
        self.now = 0.0
        self.ready: list[_Entry] = []
        self.untrained: list[_Entry] = []  # jobs alone
        self.asked: dict[int, Job] = {}  # wanted, and not delivered yet
        self.trained: dict[int, Update] = {}
        self.sequence = 0
        self.bytes_down = 0
        self._ticks: set[float] = set()

    def send(self, jobs: Sequence[Job]) -> None:
        trainer, now = self.trainer, self.now
        for job in jobs:
            down, up = trainer.download_bytes(job), trainer.upload_bytes(job)
            end, arrives = self.world.trip(self.seed, job, down, up, now)
            self.bytes_down += down
            if arrives:
                self._push(self.untrained, end, job)
            else:
                self._push(self.ready, end, Lost(job, now))

    def wake(self, at: float, client: int | None = None) -> None:
        if client is not None:
            self._push(self.ready, at, Tick(client))
        elif math.isfinite(at) and at not in self._ticks:
            self._ticks.add(at)
            self._push(self.ready, at, Tick())

    def _push(self, heap: list[_Entry], at: float, what: Job | Lost | Tick) -> None:
        self.sequence += 1
        heapq.heappush(heap, (at, self.sequence, what, self.now))

    @property
    def next_at(self) -> float:
        """The time of the next event."""
        return min((heap[0][0] for heap in (self.ready, self.untrained) if heap), default=math.inf)

    @property
    def flying(self) -> list[Job]:
        """The jobs that are out."""
        what = [what for _, _, what, _ in (*self.ready, *self.untrained)]
        return [w.job if isinstance(w, Lost) else w for w in what if not isinstance(w, Tick)]

    def wanted(self) -> list[Job]:
        """The jobs to be trained before the next event can be handled; none when it needs no training.

        They are the untrained ones that arrive first, in this order, as many as are worth training at once; the same
        ones until they are delivered.  Whoever asks may train them elsewhere, together with those of other runs.
        """
        if not self.asked and self.untrained and (not self.ready or self.untrained[0] < self.ready[0]):
            for _ in range(min(self.trainer.bulk, len(self.untrained))):
                entry = heapq.heappop(self.untrained)
                heapq.heappush(self.ready, entry)
                assert isinstance(entry[2], Job)
                self.asked[entry[2].id] = entry[2]
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
        at, _, what, sent = heapq.heappop(self.ready)
        self.now = max(self.now, at)
        if isinstance(what, Job):
            return Arrival(what, self.trained.pop(what.id), sent)
        if isinstance(what, Tick) and what.client is None:
            self._ticks.discard(at)
        return what

    def state_dict(self) -> dict[str, Any]:
        """Everything in flight.  Results that are trained already are kept: training them again in another stack could
        round differently."""
        return {
            "now": self.now,
            "sequence": self.sequence,
            "bytes_down": self.bytes_down,
            "queue": [(at, n, _plain(what), sent) for at, n, what, sent in (*self.ready, *self.untrained)],
            "trained": [_plain(update) for update in self.trained.values()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.now, self.sequence, self.bytes_down = state["now"], state["sequence"], state["bytes_down"]
        self.trained = {update["job"]: Update(**update) for update in state["trained"]}
        self.asked, self.ready, self.untrained = {}, [], []
        for at, n, parts, sent in sorted(state["queue"], key=operator.itemgetter(0, 1)):  # a sorted list is a heap
            what = _whole(parts)
            untrained = isinstance(what, Job) and what.id not in self.trained
            (self.untrained if untrained else self.ready).append((at, n, what, sent))
        self._ticks = {at for at, _, what, _ in self.ready if isinstance(what, Tick) and what.client is None}


def _plain(message: Job | Update | Lost | Tick) -> dict[str, Any]:
    """A message as a dict whose tensors are still shared (`dataclasses.asdict` would copy them)."""
    parts = {field.name: getattr(message, field.name) for field in fields(message)}
    return parts | {"job": _plain(message.job)} if isinstance(message, Lost) else parts


def _whole(parts: dict[str, Any]) -> Job | Lost | Tick:
    """The inverse, for what stands in the queue."""
    if "id" in parts:
        return Job(**parts)
    return Lost(Job(**parts["job"]), parts["sent"]) if "job" in parts else Tick(**parts)
