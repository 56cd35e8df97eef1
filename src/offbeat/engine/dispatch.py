"""When the server acts: how many clients it keeps busy and when it makes a new version.

A dispatch only counts.  It opens places, which the loop fills with clients that are idle and awake, and it says when a
step is due.  Who is drawn is the pool's business, which way the step goes the algorithm's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any

from offbeat.errors import ConfigError
from offbeat.messages import Job
from offbeat.options import Count, Options, Positive


@dataclass(kw_only=True)
class Dispatch(Options, ABC):
    concurrency: Count = 10
    """M_c: clients that work at the same time."""

    def start(self) -> None:
        self.open = self.concurrency  # places that wait for a client
        self.buffered = 0  # arrivals since the last step

    def sent(self, count: int, now: float) -> float | None:
        """`count` of the open places were filled; the answer is a moment at which to look again, if any."""
        self.open -= count
        return None

    def accepts(self, job: Job, version: int) -> bool:
        """Whether an arriving update still counts."""
        return True

    @abstractmethod
    def freed(self, job: Job, version: int, arrived: bool) -> None:
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
class Rounds(Dispatch):
    """Synchronous: draw a cohort of `concurrency` clients, wait for all of it, step.

    With a deadline the server steps after that many seconds with what it has; what comes later does not count.
    Clients that are given up are not waited for.
    """

    deadline: Positive | None = None
    """Seconds after which a round ends."""

    def start(self) -> None:
        super().start()
        self.pending = 0  # jobs of this round that are out
        self.ends = math.inf

    def sent(self, count: int, now: float) -> float | None:
        if not count:
            return None
        self.open, self.pending = 0, count  # a cohort may be smaller when few are awake
        if self.deadline is not None:
            self.ends = now + self.deadline
            return self.ends
        return None

    def accepts(self, job: Job, version: int) -> bool:
        return job.version == version

    def freed(self, job: Job, version: int, arrived: bool) -> None:
        if job.version == version:
            self.pending -= 1

    def due(self, now: float) -> bool:
        return not self.open and (self.pending == 0 or now >= self.ends)

    def stepped(self) -> None:
        self.open, self.pending, self.ends = self.concurrency, 0, math.inf


@dataclass(kw_only=True)
class Buffered(Dispatch):
    """Asynchronous, as in CA²FL: step at every `buffer`-th arrival, then draw as many new clients as have arrived.

    A trip that is given up is replaced at once.
    """

    buffer: Count = 5
    """M: arrivals a step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buffer > self.concurrency:
            raise ConfigError(
                f"{self.buffer} updates a step can never come from concurrency = {self.concurrency} clients: "
                f"at most {self.concurrency}",
                key="buffer",
            )

    def freed(self, job: Job, version: int, arrived: bool) -> None:
        if arrived:
            self.buffered += 1
        else:
            self.open += 1

    def due(self, now: float) -> bool:
        return self.buffered >= self.buffer

    def stepped(self) -> None:
        self.open += self.buffered
        self.buffered = 0


@dataclass(kw_only=True)
class KeepBusy(Dispatch):
    """Asynchronous, as in FedBuff: every client that comes free is replaced at once; step at every `buffer`-th arrival.

    A fast client can then be in one buffer twice.
    """

    buffer: Count = 5
    """M: arrivals a step."""

    def freed(self, job: Job, version: int, arrived: bool) -> None:
        self.open += 1
        self.buffered += arrived

    def due(self, now: float) -> bool:
        return self.buffered >= self.buffer

    def stepped(self) -> None:
        self.buffered = 0


@dataclass(kw_only=True)
class PerArrival(Dispatch):
    """Asynchronous, as in FedAsync: step at every arrival; every client that comes free is replaced at once."""

    def freed(self, job: Job, version: int, arrived: bool) -> None:
        self.open += 1
        self.buffered += arrived

    def due(self, now: float) -> bool:
        return self.buffered > 0

    def stepped(self) -> None:
        self.buffered = 0


DISPATCHES: dict[str, type[Dispatch]] = {
    "rounds": Rounds,
    "buffered": Buffered,
    "keep-busy": KeepBusy,
    "per-arrival": PerArrival,
}
