"""Availability of the clients: whether they can be selected and work on their job."""

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

Span = tuple[bool, float]  # whether the client is available, and until when at least


class Availability(Options, ABC):
    """Interface for availability models."""

    constant: ClassVar[bool] = False
    """Whether every client is always available."""
    depends_on_labels: ClassVar[bool] = False
    """Whether a client's availability depends on its labels."""
    per_client: ClassVar[tuple[str, ...]] = ()
    """Fields that may hold one value per client."""

    @abstractmethod
    def span(self, client: int, client_key: int, now: float) -> Span:
        """Return whether a client is available, and a later time until which this does not change.

        Args:
            client: The client.
            client_key: The random key of the client.
            now: The current time.
        """

    @abstractmethod
    def next_change(self, now: float) -> float:
        """Return the next time at which the availability of any client may change."""

    def probability_of(self, client: int) -> float | None:
        """Return the probability that a client is available, or None if the model has none."""
        return None

    def among(self, counts: Callable[[], NDArray[np.int64]]) -> Availability:
        """Return the model for the clients of a partitioned dataset.

        Args:
            counts: Returns the number of examples per client and label, as an array (clients, classes). It is a
                function because the array is large for many clients and most models do not need it.
        """
        return self


@dataclass(kw_only=True, frozen=True)
class Always(Availability):
    """All clients are always available."""

    constant: ClassVar[bool] = True

    def span(self, client: int, client_key: int, now: float) -> Span:
        """Return that the client is available forever."""
        return True, math.inf

    def next_change(self, now: float) -> float:
        """Return infinity: nothing ever changes."""
        return math.inf

    def probability_of(self, client: int) -> float | None:
        """Return 1."""
        return 1.0


@dataclass(kw_only=True, frozen=True)
class Bernoulli(Availability):
    """In every slot of `slot` seconds each client is available with its own probability, independently."""

    per_client: ClassVar[tuple[str, ...]] = ("probability",)

    probability: Probability | tuple[Probability, ...] = 0.5
    """Probability of being available: one value for all clients, or one per client."""
    slot: Positive = 1.0
    """Length of a slot in seconds."""

    def span(self, client: int, client_key: int, now: float) -> Span:
        """Return whether the client is available in the current slot, and the end of the slot."""
        slot = self._slot(now)
        return uniform(key(client_key, "awake", slot)) < self.probability_of(client), (slot + 1) * self.slot

    def next_change(self, now: float) -> float:
        """Return the end of the current slot."""
        return (self._slot(now) + 1) * self.slot

    def probability_of(self, client: int) -> float:
        """Return the client's probability."""
        p = self.probability
        if not isinstance(p, tuple):
            return p
        if client >= len(p):
            raise ConfigError(
                f"{len(p)} values, but there is a client {client}: give one per client", key="probability"
            )
        return p[client]

    def _slot(self, now: float) -> int:
        n = math.floor(now / self.slot)
        while (n + 1) * self.slot <= now:  # the quotient may be rounded down at the start of a slot
            n += 1
        return n


@dataclass(kw_only=True, frozen=True)
class ByLabel(Availability):
    """Bernoulli with probability least + (1 − least)·label/(classes − 1).

    Availability then correlates with the data, as in the experiments of MIFA.
    """

    depends_on_labels: ClassVar[bool] = True

    least: Probability = 0.1
    """Probability of the clients with label 0."""
    label: Literal["majority", "smallest"] = "majority"
    """Label that determines a client's probability: its most frequent or its smallest label."""
    slot: Positive = 1.0
    """Length of a slot in seconds."""

    def among(self, counts: Callable[[], NDArray[np.int64]]) -> Bernoulli:
        """Return the Bernoulli model with the probabilities that follow from the clients' labels."""
        table = counts()
        labels = table.argmax(axis=1) if self.label == "majority" else (table > 0).argmax(axis=1)
        shares = self.least + (1.0 - self.least) * labels / max(1, table.shape[1] - 1)
        return Bernoulli(probability=tuple(shares.tolist()), slot=self.slot)

    def span(self, client: int, client_key: int, now: float) -> Span:
        """Raise a `RuntimeError`: the probabilities are unknown without data."""
        raise RuntimeError("the probabilities depend on the data: call `among` first")

    def next_change(self, now: float) -> float:
        """Raise a `RuntimeError`: the probabilities are unknown without data."""
        raise RuntimeError("the probabilities depend on the data: call `among` first")
