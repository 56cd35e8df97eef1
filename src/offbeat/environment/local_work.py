"""How many local steps a client really does: what it is asked for, or what it decides itself.

In anarchic federated learning this is the worker's business: its battery, its mood, its owner.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from offbeat.errors import ConfigError
from offbeat.options import Options, Positive, PositiveInt, Probability
from offbeat.random import key, uniform


class LocalWork(Options, ABC):
    exact: ClassVar[bool] = False
    """Whether every client does exactly the steps that the server requests."""
    per_client: ClassVar[tuple[str, ...]] = ()
    """Fields that may hold one value a client."""

    @abstractmethod
    def steps(self, asked: int, client: int, client_key: int, trip_key: int, now: float) -> int:
        """Local steps of a trip that begins now."""


@dataclass(kw_only=True, frozen=True)
class Requested(LocalWork):
    """What the server asks for."""

    exact: ClassVar[bool] = True

    def steps(self, asked: int, client: int, client_key: int, trip_key: int, now: float) -> int:
        return asked


@dataclass(kw_only=True, frozen=True)
class UniformSteps(LocalWork):
    """U{1, …, 2·mean} a trip: the dynamic local steps of the Anarchic FL experiments."""

    mean: PositiveInt | None = None
    """The number that is asked for, unless it is given."""

    def steps(self, asked: int, client: int, client_key: int, trip_key: int, now: float) -> int:
        return 1 + int(uniform(key(trip_key, "effort")) * 2 * (self.mean or asked))


@dataclass(kw_only=True, frozen=True)
class PerClient(LocalWork):
    """A fixed number for each client: given, or drawn once from U{low, …, high}."""

    per_client: ClassVar[tuple[str, ...]] = ("values",)

    values: tuple[PositiveInt, ...] = ()
    """Local steps, one number a client; empty: drawn."""
    low: PositiveInt = 1
    """Fewest steps that are drawn."""
    high: PositiveInt = 10
    """Most steps that are drawn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise ConfigError(f"{self.low} is above the upper end, {self.high}", key="low")

    def steps(self, asked: int, client: int, client_key: int, trip_key: int, now: float) -> int:
        if not self.values:
            return self.low + int(uniform(key(client_key, "effort")) * (self.high - self.low + 1))
        if client >= len(self.values):
            raise ConfigError(f"{len(self.values)} values, but there is a client {client}", key="values")
        return self.values[client]


@dataclass(kw_only=True, frozen=True)
class Battery(LocalWork):
    """As asked on the mains; on battery a share that falls with the charge.

    A cycle of `period` seconds begins with the share `charging` of it on the mains; then the battery empties.  Where a
    client stands in its cycle at time zero is its own.  On battery it does max(1, charge·asked) steps.
    """

    period: Positive = 100.0
    """Seconds of a cycle."""
    charging: Probability = 0.3
    """Share of a cycle on the mains."""

    def steps(self, asked: int, client: int, client_key: int, trip_key: int, now: float) -> int:
        phase = (now / self.period + uniform(key(client_key, "battery"))) % 1.0
        if phase < self.charging:
            return asked
        charge = 1.0 - (phase - self.charging) / (1.0 - self.charging)
        return max(1, round(charge * asked))


LOCAL_WORK: dict[str, type[LocalWork]] = {
    "requested": Requested,
    "uniform": UniformSteps,
    "per-client": PerClient,
    "battery": Battery,
}
