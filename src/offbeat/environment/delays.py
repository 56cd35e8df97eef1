"""Delay models: the duration of a trip, from sending a job to receiving its update.

A model returns the duration of one trip. Properties of the client, such as its speed and bandwidth, depend on the
random key of the client. Everything else depends on the key of the job; see `offbeat.random`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

from offbeat.errors import ConfigError
from offbeat.messages import record
from offbeat.options import Interval, NonNegative, Options, Positive, Probability
from offbeat.random import exponential, key, normal, uniform


@record
class Trip:
    """The data of a trip that a delay may depend on."""

    client: int
    client_key: int
    trip_key: int
    steps: int
    bytes_down: int
    bytes_up: int


class Delay(Options, ABC):
    """Interface for delay models."""

    per_client: ClassVar[tuple[str, ...]] = ()
    """Fields that may hold one value per client."""

    @abstractmethod
    def seconds(self, trip: Trip) -> float:
        """Return the duration of a trip in seconds."""

    def profile(self, client: int, client_key: int, model_bytes: int) -> tuple[float, float] | None:
        """Return the speed of a client.

        Args:
            client: The client.
            client_key: The random key of the client.
            model_bytes: Size of the uncompressed model.

        Returns:
            (α_i, β_i), the seconds per local step and the seconds to upload the whole model, or None if the model does
            not define them.
        """
        return None


@dataclass(kw_only=True, frozen=True)
class Constant(Delay):
    """Every trip takes `value` seconds."""

    value: Positive = 1.0
    """Seconds per trip."""

    def seconds(self, trip: Trip) -> float:
        """Return `value`."""
        return self.value


@dataclass(kw_only=True, frozen=True)
class Uniform(Delay):
    """U(low, high) seconds per trip."""

    low: NonNegative = 0.0
    """Minimum in seconds."""
    high: Positive = 1.0
    """Maximum in seconds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_order(self.low, self.high)

    def seconds(self, trip: Trip) -> float:
        """Return a uniform random duration."""
        return self.low + (self.high - self.low) * uniform(trip.trip_key)


@dataclass(kw_only=True, frozen=True)
class Exponential(Delay):
    """Exponential with a given mean, multiplied by a uniform factor per client."""

    mean: Positive = 1.0
    """Mean seconds per trip."""
    spread: tuple[Positive, Positive] = (1.0, 1.0)
    """Range of the uniform factor, which is drawn once per client."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_order(*self.spread, key="spread")

    def seconds(self, trip: Trip) -> float:
        """Return an exponential random duration."""
        low, high = self.spread
        return self.mean * (low + (high - low) * uniform(trip.client_key)) * exponential(trip.trip_key)


@dataclass(kw_only=True, frozen=True)
class HalfNormal(Delay):
    """s_i + scale·|N(0, 1)| with one s_i ~ U(low, high) per client: the delays of the CA²FL experiments.

    This reading of the paper's "halfnorm(s), s ~ Unif(0, 5)" reproduces its reported maximum delays. The reading in
    which s is the scale does not.
    """

    scale: NonNegative = 1.0
    """Scale of the variation between trips."""
    low: NonNegative = 0.0
    """Minimum of s_i."""
    high: NonNegative = 5.0
    """Maximum of s_i."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_order(self.low, self.high)

    def seconds(self, trip: Trip) -> float:
        """Return the client's shift plus a half-normal random duration."""
        shift = self.low + (self.high - self.low) * uniform(trip.client_key)
        return shift + self.scale * abs(normal(trip.trip_key))


@dataclass(kw_only=True, frozen=True)
class LogNormal(Delay):
    """median·exp(sigma·N(0, 1)) seconds per trip: most trips are fast, and a few are very slow."""

    median: Positive = 1.0
    """Median seconds per trip."""
    sigma: Annotated[float, Interval(ge=0, le=20)] = 1.0
    """Standard deviation of the logarithm. With 0 all trips are equal."""

    def seconds(self, trip: Trip) -> float:
        """Return a log-normal random duration."""
        return self.median * math.exp(self.sigma * normal(trip.trip_key))


@dataclass(kw_only=True, frozen=True)
class Speeds(Delay):
    """Local steps times the client's seconds per step, with some jitter per trip.

    The speeds are given, one per client, or drawn: median·exp(sigma·N(0, 1)), and a fraction `stragglers` of the
    clients is slower by the factor `slowdown`.
    """

    per_client: ClassVar[tuple[str, ...]] = ("seconds_per_step",)

    seconds_per_step: tuple[Positive, ...] = ()
    """Seconds per step, one value per client. If empty, they are drawn."""
    median: Positive = 0.1
    """Median seconds per step over the clients."""
    sigma: NonNegative = 0.5
    """Standard deviation of the logarithm over the clients. With 0 all clients are equal."""
    stragglers: Probability = 0.0
    """Fraction of the clients that are stragglers."""
    slowdown: Positive = 10.0
    """Factor by which stragglers are slower."""
    jitter: NonNegative = 0.1
    """Standard deviation of the logarithm over a client's trips. With 0 they are equal."""

    def step_seconds(self, trip: Trip) -> float:
        """Return the client's seconds per local step."""
        if self.seconds_per_step:
            return given(self.seconds_per_step, trip.client, "seconds_per_step")
        slow = uniform(key(trip.client_key, "straggler")) < self.stragglers
        speed = self.median * math.exp(self.sigma * normal(key(trip.client_key, "speed")))
        return speed * (self.slowdown if slow else 1.0)

    def seconds(self, trip: Trip) -> float:
        """Return the duration of the local steps with jitter."""
        return trip.steps * self.step_seconds(trip) * math.exp(self.jitter * normal(trip.trip_key))

    def profile(self, client: int, client_key: int, model_bytes: int) -> tuple[float, float]:
        """Return the seconds per step, and no time for the upload."""
        return self.step_seconds(Trip(client, client_key, 0, 1, 0, 0)), 0.0


@dataclass(kw_only=True, frozen=True)
class Devices(Delay):
    """Computation plus communication: steps·α_i + bytes_down/down_i + bytes_up/up_i.

    α_i (seconds per step) and the two bandwidths (bytes per second) are given, one value per client, or drawn from
    log-normal distributions.
    """

    per_client: ClassVar[tuple[str, ...]] = ("seconds_per_step", "up", "down")

    seconds_per_step: tuple[Positive, ...] = ()
    """α_i, one value per client. If empty, they are drawn."""
    up: tuple[Positive, ...] = ()
    """Upload bandwidth in bytes per second, one value per client. If empty, they are drawn."""
    down: tuple[Positive, ...] = ()
    """Download bandwidth in bytes per second, one value per client. If empty, they are drawn."""
    median_step: Positive = 0.1
    """Median of the α_i."""
    median_up: Positive = 1e6
    """Median upload bandwidth in bytes per second."""
    median_down: Positive = 4e6
    """Median download bandwidth in bytes per second."""
    sigma: NonNegative = 0.5
    """Standard deviation of the logarithms over the clients. With 0 all clients are equal."""

    def seconds(self, trip: Trip) -> float:
        """Return the time of the local steps, the download and the upload."""
        alpha, up = self._step(trip.client, trip.client_key), self._up(trip.client, trip.client_key)
        down = self._of(trip.client, trip.client_key, "down", self.down, self.median_down)
        return trip.steps * alpha + trip.bytes_down / down + trip.bytes_up / up

    def profile(self, client: int, client_key: int, model_bytes: int) -> tuple[float, float]:
        """Return the seconds per step and the seconds to upload the model."""
        return self._step(client, client_key), model_bytes / self._up(client, client_key)

    def _step(self, client: int, client_key: int) -> float:
        return self._of(client, client_key, "seconds_per_step", self.seconds_per_step, self.median_step)

    def _up(self, client: int, client_key: int) -> float:
        return self._of(client, client_key, "up", self.up, self.median_up)

    def _of(self, client: int, client_key: int, name: str, values: tuple[float, ...], median: float) -> float:
        if values:
            return given(values, client, name)
        return median * math.exp(self.sigma * normal(key(client_key, name)))


def given(values: tuple[float, ...], client: int, name: str) -> float:
    """Return the value of a client, or raise a `ConfigError` for the option `name` if there is none."""
    if client >= len(values):
        raise ConfigError(f"{len(values)} values, but there is a client {client}: give one per client", key=name)
    return values[client]


def _check_order(low: float, high: float, key: str = "low") -> None:
    if low > high:
        raise ConfigError(f"{low:g} is above the upper end, {high:g}", key=key)
