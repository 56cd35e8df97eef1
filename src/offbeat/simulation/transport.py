"""A transport in virtual time that trains late and in bulk.

In virtual time a job's result is needed only when it arrives. Nothing is trained until the earliest arrival needs it;
then all untrained jobs in flight are trained together, in one stack.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Sequence
from typing import Any, Protocol

from offbeat.environment import Environment
from offbeat.errors import OffbeatError
from offbeat.messages import Job, Update, parts
from offbeat.server.events import Arrival, Event, Lost, Tick
from offbeat.server.session import RunTransport
from offbeat.simulation.attack_simulation import AttackSimulator


class Trainer(Protocol):
    """Trains jobs and knows the sizes of their messages."""

    bulk: int  # largest number of jobs worth training at once

    def upload_bytes(self, job: Job) -> int:
        """Return the size of the job's update."""

    def download_bytes(self, job: Job) -> int:
        """Return the size of the job's download."""

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        """Return the updates of the given jobs."""


_Entry = tuple[float, int, Any, float]
"""Time; sequence number, which breaks ties by order of sending (so later fields are never compared); what happens (a
`Job` that arrives, a `Lost`, a `Tick`); time of sending."""

AFTER_ARRIVALS = 1 << 62
"""Added to the sequence number of the server's own ticks: a period includes the arrivals exactly at its end."""


class SimulatedTransport(RunTransport):
    """The virtual clock and its event queue: untrained jobs, trained jobs, and everything else.

    An entry is created once and moved from list to list. Creating the events of a bulk at once would trigger Python's
    garbage collector for each bulk, which costs more than the bookkeeping.

    Args:
        environment: Delays and losses.
        trainer: Trains jobs.
        seed: Seed of the run.
        attack_simulator: Forges the updates of attackers, if there are any.
    """

    now: float = 0.0

    def __init__(
        self, environment: Environment, trainer: Trainer, seed: int, attack_simulator: AttackSimulator | None = None
    ) -> None:
        self.environment, self.trainer, self.seed, self.attack_simulator = environment, trainer, seed, attack_simulator
        self.untrusted = attack_simulator is not None  # executors check what they have trained
        self.now = 0.0
        self.untrained: list[_Entry] = []  # heap of jobs
        self.ready: list[_Entry] = []  # jobs that are trained or requested, the earliest last
        self.others: list[_Entry] = []  # heap of losses and ticks
        self.asked: dict[int, Job] = {}  # requested from the trainer, not delivered yet
        self.trained: dict[int, Update] = {}
        self.sequence = 0
        self.bytes_down = 0
        self._ticks: set[float] = set()

    def send(self, jobs: Sequence[Job]) -> None:
        """Schedule the arrival or loss of jobs."""
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
        """Schedule a tick."""
        if client is not None:
            self._tick(at, Tick(client))
        elif math.isfinite(at) and at not in self._ticks:
            self._ticks.add(at)
            self._tick(at, Tick())

    def _tick(self, at: float, tick: Tick) -> None:
        self.sequence += 1
        place = self.sequence + (AFTER_ARRIVALS if tick.client is None else 0)
        heapq.heappush(self.others, (at, place, tick, self.now))

    @property
    def next_at(self) -> float:
        """Time of the next event."""
        first = (self.untrained[:1], self.ready[-1:], self.others[:1])
        return min((entry[0] for entries in first for entry in entries), default=math.inf)

    @property
    def flying(self) -> list[Job]:
        """Jobs in flight."""
        lost = [what.job for _, _, what, _ in self.others if isinstance(what, Lost)]
        return lost + [job for _, _, job, _ in (*self.ready, *self.untrained)]

    def wanted(self) -> list[Job]:
        """Return the jobs that must be trained before the next event; none if it needs no training.

        They are the untrained jobs that arrive first, as many as are worth training at once. The list does not change
        until they are delivered. The caller may train them together with jobs of other runs.
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
        """Accept the updates of wanted jobs."""
        for update in updates:
            del self.asked[update.job]
            self.trained[update.job] = update

    def receive(self) -> Event:
        """Return the next event and advance the clock.

        Raises:
            OffbeatError: Nothing is in flight and no client will become available.
        """
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
            raise OffbeatError("nothing is in flight and no client will become available: the run cannot continue")
        at, _, what, _ = heapq.heappop(others)
        self.now = max(self.now, at)
        if isinstance(what, Tick) and what.client is None:
            self._ticks.discard(at)
        assert isinstance(what, (Lost, Tick))
        return what

    def state_dict(self) -> dict[str, Any]:
        """Return everything in flight.

        Trained results are included: training them again in another stack could round differently.
        """
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
        """Continue from a saved state."""
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
    """Return the queue entry that `_plain` has serialized."""
    if "id" in plain:
        return Job(**plain)
    return Lost(Job(**plain["job"]), plain["sent"]) if "job" in plain else Tick(**plain)
