"""Who is awake, that is, can be given a job."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from offbeat.errors import ConfigError
from offbeat.options import Options, Positive, Probability
from offbeat.seeds import key, uniform


class Availability(Options, ABC):
    @abstractmethod
    def awake(self, client: int, client_key: int, now: float) -> bool: ...

    @abstractmethod
    def next_change(self, now: float) -> float:
        """The next moment at which somebody may wake up."""


@dataclass(kw_only=True, frozen=True)
class Always(Availability):
    """Everybody, always."""

    def awake(self, client: int, client_key: int, now: float) -> bool:
        return True

    def next_change(self, now: float) -> float:
        return math.inf


@dataclass(kw_only=True, frozen=True)
class Bernoulli(Availability):
    """In every slot of `slot` seconds each client is awake with its own probability, independently."""

    probability: Probability | tuple[Probability, ...] = 0.5
    """One for all, or one a client."""
    slot: Positive = 1.0

    def awake(self, client: int, client_key: int, now: float) -> bool:
        p = self.probability
        if isinstance(p, tuple):
            if client >= len(p):
                raise ConfigError(f"{len(p)} values, but there is a client {client}", key="probability")
            p = p[client]
        return uniform(key(client_key, "awake", self._slot(now))) < p

    def next_change(self, now: float) -> float:
        return (self._slot(now) + 1) * self.slot

    def _slot(self, now: float) -> int:
        n = math.floor(now / self.slot)
        while (n + 1) * self.slot <= now:  # the quotient may be rounded down at a slot's very beginning
            n += 1
        return n


AVAILABILITIES: dict[str, type[Availability]] = {"always": Always, "bernoulli": Bernoulli}
