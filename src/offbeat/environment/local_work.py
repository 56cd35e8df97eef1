"""Number of local steps that a client takes: as requested by the server, or by its own choice.

In anarchic federated learning the worker decides, for example by the charge of its battery.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from offbeat.errors import ConfigError
from offbeat.options import Options, Positive, PositiveInt, Probability
from offbeat.random import key, uniform


class LocalWork(Options, ABC):
    """Interface for models of the local work."""

    exact: ClassVar[bool] = False
    """Whether every client takes exactly the number of steps that the server requests."""
    per_client: ClassVar[tuple[str, ...]] = ()
    """Fields that may hold one value per client."""

    @abstractmethod
    def steps(self, requested: int, client: int, client_key: int, trip_key: int, now: float) -> int:
        """Return the number of local steps of a job that starts now.

        Args:
            requested: The number of steps that the server requests.
            client: The client.
            client_key: The random key of the client.
            trip_key: The random key of the job.
            now: The current time.
        """


@dataclass(kw_only=True, frozen=True)
class Requested(LocalWork):
    """As many steps as the server requests."""

    exact: ClassVar[bool] = True

    def steps(self, requested: int, client: int, client_key: int, trip_key: int, now: float) -> int:
        """Return the requested number."""
        return requested


@dataclass(kw_only=True, frozen=True)
class UniformSteps(LocalWork):
    """U{1, …, 2·mean} steps per job: the dynamic local steps of the Anarchic FL experiments."""

    mean: PositiveInt | None = None
    """Mean number of steps. The default is the requested number."""

    def steps(self, requested: int, client: int, client_key: int, trip_key: int, now: float) -> int:
        """Return a random number for the job."""
        return 1 + int(uniform(key(trip_key, "effort")) * 2 * (self.mean or requested))


@dataclass(kw_only=True, frozen=True)
class PerClient(LocalWork):
    """A fixed number of steps per client: given, or drawn once from U{low, …, high}."""

    per_client: ClassVar[tuple[str, ...]] = ("values",)

    values: tuple[PositiveInt, ...] = ()
    """Local steps, one value per client. If empty, they are drawn."""
    low: PositiveInt = 1
    """Minimum of the drawn values."""
    high: PositiveInt = 10
    """Maximum of the drawn values."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise ConfigError(f"{self.low} is above the upper end, {self.high}", key="low")

    def steps(self, requested: int, client: int, client_key: int, trip_key: int, now: float) -> int:
        """Return the client's number."""
        if not self.values:
            return self.low + int(uniform(key(client_key, "effort")) * (self.high - self.low + 1))
        if client >= len(self.values):
            raise ConfigError(
                f"{len(self.values)} values, but there is a client {client}: give one per client", key="values"
            )
        return self.values[client]


@dataclass(kw_only=True, frozen=True)
class Battery(LocalWork):
    """The requested number while charging, and a fraction that decreases with the charge otherwise.

    Each cycle of `period` seconds starts with a fraction `charging` of it on the charger; then the battery discharges.
    Each client starts at a random phase of its cycle. On battery it takes max(1, charge·requested) steps.
    """

    period: Positive = 100.0
    """Length of a cycle in seconds."""
    charging: Probability = 0.3
    """Fraction of a cycle on the charger."""

    def steps(self, requested: int, client: int, client_key: int, trip_key: int, now: float) -> int:
        """Return the number for the current phase of the cycle."""
        phase = (now / self.period + uniform(key(client_key, "battery"))) % 1.0
        if phase < self.charging:
            return requested
        charge = 1.0 - (phase - self.charging) / (1.0 - self.charging)
        return max(1, round(charge * requested))


LOCAL_WORK: dict[str, type[LocalWork]] = {
    "requested": Requested,
    "uniform": UniformSteps,
    "per-client": PerClient,
    "battery": Battery,
}
