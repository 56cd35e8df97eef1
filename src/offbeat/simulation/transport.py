"""A transport in virtual time that trains late and in bulk.

In virtual time a job's result is needed only when it arrives.  So nothing is trained until the earliest arrival needs
it; then the jobs in flight that are not trained yet are trained together, in one stack.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Sequence
from typing import Any, Protocol

from offbeat.environment import Environment
from offbeat.messages import Job, Update, parts
from offbeat.server.events import Arrival, Event, Lost, Tick
from offbeat.server.session import RunTransport
from offbeat.simulation.attack_simulation import AttackSimulator


class Trainer(Protocol):
    """Does the clients' local work."""

    bulk: int  # most jobs that are worth training at once

    def upload_bytes(self, job: Job) -> int:
        """What the job's update will cost on the wire."""

    def download_bytes(self, job: Job) -> int: ...

    def train(self, jobs: Sequence[Job]) -> list[Update]: ...


_Entry = tuple[float, int, Any, float]
"""Time; sequence number, which breaks ties by order of sending (so entries are compared no further than here); what
happens (a `Job`: it arrives, a `Lost`, a `Tick`); when it was sent."""


class SimulatedTransport(RunTransport):
    """The virtual clock and what will happen: jobs that must be trained first, trained ones, and everything else.

    An entry is made once and moved from list to list.  Were a bulk's events made at once, each bulk would set off
    Python's garbage collector, which costs more than the bookkeeping.
    """

    now: float = 0.0

    def __init__(
        self, environment: Environment, trainer: Trainer, seed: int, attack_simulator: AttackSimulator | None = None
    ) -> None:
        self.environment, self.trainer, self.seed, self.attack_simulator = environment, trainer, seed, attack_simulator
        self.untrusted = attack_simulator is not None  # an executor has looked at what it has trained
        self.now = 0.0
        self.untrained: list[_Entry] = []  # jobs, a heap
        self.ready: list[_Entry] = []  # jobs that are trained or asked for, the earliest last
        self.others: list[_Entry] = []  # losses and ticks, a heap
        self.asked: dict[int, Job] = {}  # wanted, and not delivered yet
        self.trained: dict[int, Update] = {}
        self.sequence = 0
        self.bytes_down = 0
        self._ticks: set[float] = set()

    def send(self, jobs: Sequence[Job]) -> None:
        environment, trainer, seed, now = self.environment, self.trainer, self.seed, self.now
        for sequence, job in enumerate(jobs, start=self.sequence + 1):
            down, up = trainer.download_bytes(job), trainer.upload_bytes(job)
            end, arrives = environment.trip(seed, job, down, up, now)
            self.bytes_down += down
            if arrives:
                heapq.heappush(self.untrained, (end, sequence, job, now))
            else:
                heapq.heappush(self.others, (end, sequence, Lost(job, now), now))
        self.sequence += len(jobs)

    def wake(self, at: float, client: int | None = None) -> None:
        if client is not None:
            self._tick(at, Tick(client))
        elif math.isfinite(at) and at not in self._ticks:
            self._ticks.add(at)
            self._tick(at, Tick())

    def _tick(self, at: float, tick: Tick) -> None:
        self.sequence += 1
        heapq.heappush(self.others, (at, self.sequence, tick, self.now))

    @property
    def next_at(self) -> float:
        """The time of the next event."""
        first = (self.untrained[:1], self.ready[-1:], self.others[:1])
        return min((entry[0] for entries in first for entry in entries), default=math.inf)

    @property
    def flying(self) -> list[Job]:
        """The jobs that are out."""
        given_up = [what.job for _, _, what, _ in self.others if isinstance(what, Lost)]
        return given_up + [job for _, _, job, _ in (*self.ready, *self.untrained)]

    def wanted(self) -> list[Job]:
        """The jobs to be trained before the next event can be handled; none when it needs no training.

        They are the untrained ones that arrive first, in this order, as many as are worth training at once; the same
        ones until they are delivered.  Whoever asks may train them elsewhere, together with those of other runs.
        """
        if not self.asked:
            untrained, ready, others = self.untrained, self.ready, self.others
            if not untrained or (ready and ready[-1] < untrained[0]) or (others and others[0] < untrained[0]):
                return []
            first = [heapq.heappop(untrained) for _ in range(min(self.trainer.bulk, len(untrained)))]
            ready.extend(first)
            ready.sort(reverse=True)
            self.asked = {job.id: job for _, _, job, _ in first}
        return list(self.asked.values())

    def deliver(self, updates: Sequence[Update]) -> None:
        """Hand in what came of jobs that were wanted."""
        for update in updates:
            del self.asked[update.job]
            self.trained[update.job] = update

    def receive(self) -> Event:
        while jobs := self.wanted():
            self.deliver(self.trainer.train(jobs))
        ready, others = self.ready, self.others
        if ready and not (others and others[0] < ready[-1]):
            at, _, job, sent = ready.pop()
            if at > self.now:
                self.now = at
            update = self.trained.pop(job.id)
            return Arrival(
                job, update if self.attack_simulator is None else self.attack_simulator.apply(job, update), sent
            )
        if not others:
            raise RuntimeError("nothing is in flight and nobody will wake up: the federation has come to rest")
        at, _, what, _ = heapq.heappop(others)
        self.now = max(self.now, at)
        if isinstance(what, Tick) and what.client is None:
            self._ticks.discard(at)
        assert isinstance(what, (Lost, Tick))
        return what

    def state_dict(self) -> dict[str, Any]:
        """Everything in flight.  Results that are trained already are kept: training them again in another stack could
        round differently."""
        return {
            "now": self.now,
            "sequence": self.sequence,
            "bytes_down": self.bytes_down,
            "queue": [
                (at, n, _plain(what), sent) for at, n, what, sent in (*self.ready, *self.untrained, *self.others)
            ],
            "trained": [_plain(update) for update in self.trained.values()],
            "attackers": self.attack_simulator.state_dict() if self.attack_simulator is not None else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.now, self.sequence, self.bytes_down = state["now"], state["sequence"], state["bytes_down"]
        self.trained = {update["job"]: Update(**update) for update in state["trained"]}
        if self.attack_simulator is not None:
            self.attack_simulator.load_state_dict(state["attackers"])
        self.asked, self.untrained, self.ready, self.others = {}, [], [], []
        for at, n, plain, sent in sorted(state["queue"], key=operator.itemgetter(0, 1)):  # a sorted list is a heap
            what = _whole(plain)
            if isinstance(what, Job):
                (self.ready if what.id in self.trained else self.untrained).append((at, n, what, sent))
            else:
                self.others.append((at, n, what, sent))
        self.ready.reverse()
        self._ticks = {at for at, _, what, _ in self.others if isinstance(what, Tick) and what.client is None}


def _plain(message: Job | Update | Lost | Tick) -> dict[str, Any]:
    return parts(message) | ({"job": parts(message.job)} if isinstance(message, Lost) else {})


def _whole(plain: dict[str, Any]) -> Job | Lost | Tick:
    """The inverse, for what stands in the queue."""
    if "id" in plain:
        return Job(**plain)
    return Lost(Job(**plain["job"]), plain["sent"]) if "job" in plain else Tick(**plain)
