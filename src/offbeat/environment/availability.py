"""Who is awake, that is, can be given a job and works on it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import ConfigError
from offbeat.options import Options, Positive, Probability
from offbeat.random import key, uniform

Span = tuple[bool, float]  # awake or not, and until when at least


class Availability(Options, ABC):
    constant: ClassVar[bool] = False
    """Whether every client is always available."""
    per_client: ClassVar[tuple[str, ...]] = ()
    """Fields that may hold one value a client."""

    @abstractmethod
    def span(self, client: int, client_key: int, now: float) -> Span:
        """Whether the client is awake now, and a later moment up to which that does not change."""

    @abstractmethod
    def next_change(self, now: float) -> float:
        """When the server should look again whether somebody has woken up."""

    def probability_of(self, client: int) -> float | None:
        """The client's probability of being awake, where the law has one."""
        return None

    def among(self, counts: Callable[[], NDArray[np.int64]]) -> Availability:
        """The law for clients with so many examples (clients, classes) of each label; for many that is a large table,
        so it is made for those laws that ask."""
        return self


@dataclass(kw_only=True, frozen=True)
class Always(Availability):
    """Everybody, always."""

    constant: ClassVar[bool] = True

    def span(self, client: int, client_key: int, now: float) -> Span:
        return True, math.inf

    def next_change(self, now: float) -> float:
        return math.inf

    def probability_of(self, client: int) -> float | None:
        return 1.0


@dataclass(kw_only=True, frozen=True)
class Bernoulli(Availability):
    """In every slot of `slot` seconds each client is awake with its own probability, independently."""

    per_client: ClassVar[tuple[str, ...]] = ("probability",)

    probability: Probability | tuple[Probability, ...] = 0.5
    """One for all, or one a client."""
    slot: Positive = 1.0
    """Seconds of a slot."""

    def span(self, client: int, client_key: int, now: float) -> Span:
        slot = self._slot(now)
        return uniform(key(client_key, "awake", slot)) < self.probability_of(client), (slot + 1) * self.slot

    def next_change(self, now: float) -> float:
        return (self._slot(now) + 1) * self.slot

    def probability_of(self, client: int) -> float:
        p = self.probability
        if not isinstance(p, tuple):
            return p
        if client >= len(p):
            raise ConfigError(f"{len(p)} values, but there is a client {client}: give one a client", key="probability")
        return p[client]

    def _slot(self, now: float) -> int:
        n = math.floor(now / self.slot)
        while (n + 1) * self.slot <= now:  # the quotient may be rounded down at a slot's very beginning
            n += 1
        return n


@dataclass(kw_only=True, frozen=True)
class ByLabel(Availability):
    """Bernoulli with probability least + (1 − least)·label/(classes − 1): who has other data is awake at other times.

    So it is in the experiments of MIFA.  It holds among the clients of a data set.
    """

    least: Probability = 0.1
    """Of those with label 0."""
    label: Literal["majority", "smallest"] = "majority"
    """Of which of its labels a client's probability depends."""
    slot: Positive = 1.0
    """Seconds of a slot."""

    def among(self, counts: Callable[[], NDArray[np.int64]]) -> Bernoulli:
        table = counts()
        labels = table.argmax(axis=1) if self.label == "majority" else (table > 0).argmax(axis=1)
        shares = self.least + (1.0 - self.least) * labels / max(1, table.shape[1] - 1)
        return Bernoulli(probability=tuple(shares.tolist()), slot=self.slot)

    def span(self, client: int, client_key: int, now: float) -> Span:
        raise RuntimeError("a law for the clients of a data set: see `among`")

    def next_change(self, now: float) -> float:
        raise RuntimeError("a law for the clients of a data set: see `among`")
