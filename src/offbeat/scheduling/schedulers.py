"""When the server acts: how many clients it keeps busy and when it makes a new version.

A scheduler only counts.  It opens places, which the loop fills with clients that are idle and awake, and it says when a
step is due.  Who is drawn is the pool's business, which way the step goes the algorithm's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from offbeat.errors import ConfigError
from offbeat.messages import Job
from offbeat.options import NonNegative, Options, Positive, PositiveInt
from offbeat.random import exponential, key, uniform

NOBODY = 1 << 62  # a job's number that is never reached


@dataclass(kw_only=True)
class Scheduler(Options, ABC):
    anarchic: ClassVar[bool] = False
    """Whether clients join by their own will instead of being drawn."""

    def start(self, clients: int) -> None:
        """Begin with so many clients."""
        self.clients = clients
        self.open = self.places  # that wait for a client
        self.buffered = 0  # arrivals since the last step

    @property
    def concurrency(self) -> int | None:
        """Clients that work at the same time, where that is bounded."""
        return None

    @property
    def deadline(self) -> float | None:
        """Seconds after which a round ends, for synchronous schedulers that have one."""
        return None

    @property
    def step_period(self) -> float | None:
        """Seconds between two steps, for a scheduler that steps by the clock."""
        return None

    @property
    def last_models(self) -> int:
        """Number of recent models from which a job may start."""
        return 1

    @property
    def probabilities(self) -> tuple[float, ...]:
        """Selection weights, one per client; empty for equal ones."""
        return ()

    def cohort(self, clients: int) -> int:
        """Return how many of a number of clients can work at the same time."""
        return self.concurrency or clients

    def validate(self, clients: int) -> None:
        """Check the options against the number of clients.

        Args:
            clients: The number of clients.

        Raises:
            ConfigError: More clients are to work at the same time than there are, or the probabilities do not fit.
        """
        if self.concurrency is not None and self.concurrency > clients:
            raise ConfigError(
                f"{self.concurrency} busy clients of {clients}: at most {clients}", key="scheduler.concurrency"
            )
        if self.probabilities and (len(self.probabilities) != clients or not any(self.probabilities)):
            raise ConfigError(
                f"{len(self.probabilities)} values, not all 0, for {clients} clients", key="scheduler.probabilities"
            )

    @property
    @abstractmethod
    def places(self) -> int:
        """Most clients that are busy at the same time."""

    @property
    def updates(self) -> int | None:
        """Updates with which a step is made; None where that varies.  A round may lose some of them."""
        return None

    @property
    def draws_sleepers(self) -> bool:
        """Whether clients are drawn that are asleep; they begin when they wake up."""
        return False

    @property
    def weights(self) -> tuple[float, ...]:
        """How likely each client is drawn; empty: all alike."""
        return ()

    @property
    def wake_at(self) -> float:
        """A moment at which a step may be due without an arrival."""
        return math.inf

    def lag(self, job_seed: int) -> int:
        """How many versions before the latest one a job starts from."""
        return 0

    def sent(self, count: int, first: int, now: float) -> None:
        """`count` of the open places were filled, by jobs numbered from `first`."""
        self.open -= count

    def accepts(self, job: Job) -> bool:
        """Whether an arriving update still counts."""
        return True

    @abstractmethod
    def freed(self, job: Job, arrived: bool) -> None:
        """A client came free, because its update arrived or because its trip was given up."""

    @abstractmethod
    def due(self, now: float) -> bool:
        """Whether the server should step now."""

    @abstractmethod
    def stepped(self) -> None:
        """A new version was made."""

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in {f.name for f in fields(self)}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


@dataclass(kw_only=True)
class _Cohorts(Scheduler):
    """Synchronous: a cohort is sent out, waited for, and stepped with."""

    deadline: Positive | None = None
    """Seconds after which a round ends with what it has; what comes later does not count."""

    def start(self, clients: int) -> None:
        super().start(clients)
        self.pending = 0  # jobs of this round that are out
        self.first = 0  # number of its first job
        self.ends = math.inf

    @property
    def wake_at(self) -> float:
        return self.ends

    def sent(self, count: int, first: int, now: float) -> None:
        if count:
            self.open, self.pending, self.first = 0, count, first  # fewer than wanted when few are awake
            self.ends = math.inf if self.deadline is None else now + self.deadline

    def accepts(self, job: Job) -> bool:
        return job.id >= self.first

    def freed(self, job: Job, arrived: bool) -> None:
        self.pending -= job.id >= self.first

    def due(self, now: float) -> bool:
        return not self.open and (self.pending == 0 or now >= self.ends)

    def stepped(self) -> None:
        self.open, self.pending, self.first, self.ends = self.places, 0, NOBODY, math.inf


@dataclass(kw_only=True)
class Rounds(_Cohorts):
    """Synchronous: draw a cohort of `concurrency` clients, wait for all of it, step.

    Clients that are given up are not waited for.
    """

    concurrency: PositiveInt = 10
    """Clients in a cohort."""
    asleep: Literal["skip", "wait"] = "skip"
    """Draw from those that are awake, or from all and wait until the sleepers have woken up and trained: "device
    sampling" in the MIFA paper."""
    last_models: PositiveInt = 1
    """Each client starts from one of the last n models at random: how the Anarchic FL paper emulates asynchrony."""
    probabilities: tuple[NonNegative, ...] = ()
    """How likely each client is drawn (one after the other, without replacement); empty: all alike."""

    @property
    def places(self) -> int:
        return self.concurrency

    @property
    def updates(self) -> int:
        return self.concurrency

    @property
    def draws_sleepers(self) -> bool:
        return self.asleep == "wait"

    @property
    def weights(self) -> tuple[float, ...]:
        return self.probabilities

    def lag(self, job_seed: int) -> int:
        return int(uniform(key(job_seed, "lag")) * self.last_models) if self.last_models > 1 else 0


@dataclass(kw_only=True)
class Available(_Cohorts):
    """Synchronous: in every round all clients that are awake train; the rounds of MIFA."""

    @property
    def places(self) -> int:
        return self.clients


@dataclass(kw_only=True)
class _Busy(Scheduler):
    """Asynchronous with a bounded number of busy clients."""

    concurrency: PositiveInt = 10
    """M_c: clients that work at the same time."""

    @property
    def places(self) -> int:
        return self.concurrency


@dataclass(kw_only=True)
class Buffered(_Busy):
    """Asynchronous, as in CA²FL: step at every `buffer`-th arrival, then draw as many new clients as have arrived.

    A trip that is given up is replaced at once.
    """

    buffer: PositiveInt = 5
    """M: arrivals a step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buffer > self.concurrency:
            raise ConfigError(
                f"{self.buffer} updates a step can never come from concurrency = {self.concurrency} clients: "
                f"at most {self.concurrency}",
                key="buffer",
            )

    @property
    def updates(self) -> int:
        return self.buffer

    def freed(self, job: Job, arrived: bool) -> None:
        self.buffered += arrived
        self.open += not arrived

    def due(self, now: float) -> bool:
        return self.buffered >= self.buffer

    def stepped(self) -> None:
        self.open += self.buffered
        self.buffered = 0


@dataclass(kw_only=True)
class Continuous(_Busy):
    """Asynchronous, as in FedBuff: every client that comes free is replaced at once; step at every `buffer`-th arrival.

    A fast client can then be in one buffer twice.
    """

    buffer: PositiveInt = 5
    """M: arrivals a step."""

    @property
    def updates(self) -> int:
        return self.buffer

    def freed(self, job: Job, arrived: bool) -> None:
        self.open += 1
        self.buffered += arrived

    def due(self, now: float) -> bool:
        return self.buffered >= self.buffer

    def stepped(self) -> None:
        self.buffered = 0


@dataclass(kw_only=True)
class PerArrival(_Busy):
    """Asynchronous, as in FedAsync: step at every arrival; every client that comes free is replaced at once."""

    @property
    def updates(self) -> int:
        return 1

    def freed(self, job: Job, arrived: bool) -> None:
        self.open += 1
        self.buffered += arrived

    def due(self, now: float) -> bool:
        return self.buffered > 0

    def stepped(self) -> None:
        self.buffered = 0


@dataclass(kw_only=True)
class Periodic(_Busy):
    """Asynchronous, as in FedLuck: step every `period` seconds with what has arrived, then draw as many new clients.

    When nothing has arrived x stays, and the version still advances.
    """

    period: Positive = 1.0
    """T̃: seconds between two steps."""

    @property
    def step_period(self) -> float:
        """Seconds between two steps."""
        return self.period

    def start(self, clients: int) -> None:
        super().start(clients)
        self.periods = 1  # that have begun

    @property
    def wake_at(self) -> float:
        return self.periods * self.period

    def freed(self, job: Job, arrived: bool) -> None:
        self.buffered += 1

    def due(self, now: float) -> bool:
        return now >= self.wake_at

    def stepped(self) -> None:
        self.open += self.buffered
        self.buffered = 0
        self.periods += 1


@dataclass(kw_only=True)
class Anarchic(Scheduler):
    """Each worker joins when it likes; the server only collects, and steps at every `buffer`-th arrival.

    After a trip, and before its first, a worker idles for an exponential time.  With `probabilities` its mean is
    inverse to the worker's own, so that arrivals come from the workers in these proportions (when idling is long
    against work).
    """

    anarchic: ClassVar[bool] = True

    buffer: PositiveInt = 5
    """m: arrivals a step."""
    idle: Positive = 30.0
    """Mean seconds of idling.  Only where it is long against a trip do the arrivals come in these proportions."""
    probabilities: tuple[Positive, ...] = ()
    """How the arrivals are divided among the workers; empty: all alike."""

    @property
    def places(self) -> int:
        return 0

    @property
    def updates(self) -> int:
        return self.buffer

    def gap(self, client: int, seed: int) -> float:
        """Seconds for which a worker idles."""
        mean = self.idle
        if self.probabilities:
            mean *= sum(self.probabilities) / (self.clients * self.probabilities[client])
        return mean * exponential(seed)

    def sent(self, count: int, first: int, now: float) -> None:
        pass

    def freed(self, job: Job, arrived: bool) -> None:
        self.buffered += arrived

    def due(self, now: float) -> bool:
        return self.buffered >= self.buffer

    def stepped(self) -> None:
        self.buffered = 0


SCHEDULERS: dict[str, type[Scheduler]] = {
    "rounds": Rounds,
    "available": Available,
    "buffered": Buffered,
    "continuous": Continuous,
    "per-arrival": PerArrival,
    "periodic": Periodic,
    "anarchic": Anarchic,
}
