"""Base class of the schedulers.

A scheduler decides how many clients train and when the server steps. It only counts: it opens places, which the server
loop fills with clients that are idle and available, and it reports when a step is due. The client pool selects the
clients, and the algorithm determines the step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from offbeat.errors import ConfigError
from offbeat.messages import Job
from offbeat.options import Options, PositiveInt


@dataclass(kw_only=True)
class Scheduler(Options, ABC):
    """Interface for schedulers."""

    anarchic: ClassVar[bool] = False
    """Whether clients join at will instead of being selected by the server."""

    def start(self, clients: int) -> None:
        """Start a new run with the given number of clients."""
        self.clients = clients
        self.open = self.places  # places without a client
        self.buffered = 0  # arrivals since the last step

    @property
    def concurrency(self) -> int | None:
        """Number of clients that train at the same time, or None if it is not limited."""
        return None

    @property
    def deadline(self) -> float | None:
        """Seconds after which a synchronous round ends, or None."""
        return None

    @property
    def step_period(self) -> float | None:
        """Seconds between two steps of a periodic scheduler, or None."""
        return None

    @property
    def last_models(self) -> int:
        """Number of recent models from which a job may start."""
        return 1

    @property
    def probabilities(self) -> tuple[float, ...]:
        """Selection weights, one per client; empty if they are equal."""
        return ()

    def cohort(self, clients: int) -> int:
        """Return how many of the given number of clients can train at the same time."""
        return self.concurrency or clients

    def validate(self, clients: int) -> None:
        """Check the options against the number of clients.

        Args:
            clients: The number of clients.

        Raises:
            ConfigError: The concurrency exceeds the number of clients, or the probabilities do not match it.
        """
        if self.concurrency is not None and self.concurrency > clients:
            raise ConfigError(
                f"{self.concurrency} busy clients of {clients}: at most {clients}", key="scheduler.concurrency"
            )
        if self.probabilities and (len(self.probabilities) != clients or not any(self.probabilities)):
            raise ConfigError(
                f"{len(self.probabilities)} values for {clients} clients: give one per client, not all of them 0",
                key="scheduler.probabilities",
            )

    @property
    @abstractmethod
    def places(self) -> int:
        """Maximum number of clients that are busy at the same time."""

    @property
    def updates(self) -> int | None:
        """Number of updates per step, or None if it varies. A synchronous round may lose some of them."""
        return None

    @property
    def draws_sleepers(self) -> bool:
        """Whether unavailable clients are selected too. They start when they become available."""
        return False

    @property
    def weights(self) -> tuple[float, ...]:
        """Selection weights, one per client; empty if they are equal."""
        return ()

    @property
    def wake_at(self) -> float:
        """Time at which a step may be due without an arrival."""
        return math.inf

    def lag(self, job_seed: int, versions: int) -> int:
        """Return how many versions before the latest one a job starts from.

        Args:
            job_seed: The random key of the job.
            versions: Number of versions from which it may start, at most `last_models`; fewer in the first rounds.
        """
        return 0

    def gap(self, client: int, seed: int) -> float:
        """Return the seconds that a client of an anarchic scheduler is idle before it joins again."""
        return 0.0

    def sent(self, count: int, first: int, now: float) -> None:
        """Record that jobs were sent.

        Args:
            count: The number of open places that were filled.
            first: The number of the first of these jobs.
            now: The current time.
        """
        self.open -= count

    def accepts(self, job: Job) -> bool:
        """Return whether an arriving update still counts."""
        return True

    @abstractmethod
    def freed(self, job: Job, arrived: bool) -> None:
        """Record that a client is idle again.

        Args:
            job: The job of the client.
            arrived: Whether its update arrived. If not, the server has given up waiting for it.
        """

    @abstractmethod
    def due(self, now: float) -> bool:
        """Return whether the server should step now."""

    @abstractmethod
    def stepped(self) -> None:
        """Record that the server made a step."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: all attributes except the options."""
        return {name: value for name, value in vars(self).items() if name not in {f.name for f in fields(self)}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of `state_dict`."""
        vars(self).update(state)


@dataclass(kw_only=True)
class LimitedConcurrency(Scheduler):
    """Base class of the asynchronous schedulers with a limited number of busy clients."""

    concurrency: PositiveInt = 10
    """M_c: number of clients that train at the same time."""

    @property
    def places(self) -> int:
        """Maximum number of busy clients: the concurrency."""
        return self.concurrency
