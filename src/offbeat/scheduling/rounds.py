"""Synchronous schedulers: the server waits for a cohort of clients and then steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from offbeat.messages import Job
from offbeat.options import NonNegative, Positive, PositiveInt
from offbeat.random import key, uniform
from offbeat.scheduling.base import Scheduler

_NO_JOB = 1 << 62  # a job number that is never reached


@dataclass(kw_only=True)
class _Synchronous(Scheduler):
    """Base class of the synchronous schedulers."""

    deadline: Positive | None = None
    """Seconds after which a round ends with the updates received so far. Later updates are discarded."""

    def start(self, clients: int) -> None:
        """Start with an empty round."""
        super().start(clients)
        self.pending = 0  # jobs of this round that have not returned
        self.first = 0  # number of the first job of this round
        self.ends = math.inf

    @property
    def wake_at(self) -> float:
        """Deadline of the current round."""
        return self.ends

    def sent(self, count: int, first: int, now: float) -> None:
        """Start a round with the selected clients, even if fewer than requested are available."""
        if count:
            self.open, self.pending, self.first = 0, count, first
            self.ends = math.inf if self.deadline is None else now + self.deadline

    def accepts(self, job: Job) -> bool:
        """Return whether the job belongs to the current round."""
        return job.id >= self.first

    def freed(self, job: Job, arrived: bool) -> None:
        """Count a returned job of the current round."""
        self.pending -= job.id >= self.first

    def due(self, now: float) -> bool:
        """Return whether all jobs of the round have returned or its deadline has passed."""
        return not self.open and (self.pending == 0 or now >= self.ends)

    def stepped(self) -> None:
        """End the round and open all places."""
        self.open, self.pending, self.first, self.ends = self.places, 0, _NO_JOB, math.inf


@dataclass(kw_only=True)
class Rounds(_Synchronous):
    """Synchronous rounds: select a cohort of `concurrency` clients, wait for all of them, step.

    The server does not wait for clients that it has given up.
    """

    concurrency: PositiveInt = 10
    """Number of clients in a cohort."""
    asleep: Literal["skip", "wait"] = "skip"
    """Selection from the available clients ("skip"), or from all clients, waiting until they become available and have
    trained ("wait": "device sampling" in the MIFA paper)."""
    last_models: PositiveInt = 1
    """Number of recent models from which a client may start, chosen at random, with the auxiliary vectors (such as
    SCAFFOLD's c) of that time. Anarchic FL emulates asynchrony in this way. In the first rounds, when fewer models
    exist, these are equally likely."""
    probabilities: tuple[NonNegative, ...] = ()
    """Selection weights, one per client, for sampling without replacement. If empty, they are equal."""

    @property
    def places(self) -> int:
        """Size of a cohort."""
        return self.concurrency

    @property
    def updates(self) -> int:
        """Size of a cohort."""
        return self.concurrency

    @property
    def draws_sleepers(self) -> bool:
        """Whether unavailable clients are selected too."""
        return self.asleep == "wait"

    @property
    def weights(self) -> tuple[float, ...]:
        """Selection weights, one per client; empty if they are equal."""
        return self.probabilities

    def lag(self, job_seed: int, versions: int) -> int:
        """Return a random lag; all existing versions among the last ones are equally likely."""
        return int(uniform(key(job_seed, "lag")) * versions) if versions > 1 else 0


@dataclass(kw_only=True)
class Available(_Synchronous):
    """Synchronous rounds in which all available clients train, as in MIFA."""

    @property
    def places(self) -> int:
        """Number of all clients."""
        return self.clients
