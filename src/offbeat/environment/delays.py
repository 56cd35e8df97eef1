"""How long a trip takes: from the moment a job is sent to the moment its update is back.

A law answers for one job.  What belongs to the client (its speed, its line) follows from the client's key, what
belongs to the trip from the job's; see `offbeat.random`.
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
    """What a delay law may look at."""

    client: int
    client_key: int
    trip_key: int
    steps: int
    bytes_down: int
    bytes_up: int


class Delay(Options, ABC):
    per_client: ClassVar[tuple[str, ...]] = ()
    """Fields that may hold one value a client."""

    @abstractmethod
    def seconds(self, trip: Trip) -> float: ...

    def profile(self, client: int, client_key: int, model_bytes: int) -> tuple[float, float] | None:
        """(α_i, β_i): seconds a local step, seconds to upload the whole model; None where the law has no such thing."""
        return None


@dataclass(kw_only=True, frozen=True)
class Constant(Delay):
    """Every trip takes `value` seconds."""

    value: Positive = 1.0
    """Seconds a trip."""

    def seconds(self, trip: Trip) -> float:
        return self.value


@dataclass(kw_only=True, frozen=True)
class Uniform(Delay):
    """U(low, high) a trip."""

    low: NonNegative = 0.0
    """Fewest seconds."""
    high: Positive = 1.0
    """Most seconds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ordered(self.low, self.high)

    def seconds(self, trip: Trip) -> float:
        return self.low + (self.high - self.low) * uniform(trip.trip_key)


@dataclass(kw_only=True, frozen=True)
class Exponential(Delay):
    """Exponential with the given mean, which may differ from client to client by a uniform factor in `spread`."""

    mean: Positive = 1.0
    """Mean seconds a trip."""
    spread: tuple[Positive, Positive] = (1.0, 1.0)
    """Ends of the uniform factor, drawn once a client."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ordered(*self.spread, key="spread")

    def seconds(self, trip: Trip) -> float:
        low, high = self.spread
        return self.mean * (low + (high - low) * uniform(trip.client_key)) * exponential(trip.trip_key)


@dataclass(kw_only=True, frozen=True)
class HalfNormal(Delay):
    """s_i + scale·|N(0, 1)| with s_i ~ U(low, high) once a client: the law of the CA²FL experiments.

    With this reading of the paper's "halfnorm(s), s ~ Unif(0, 5)" its reported largest delays come out; with s as the
    scale they do not.
    """

    scale: NonNegative = 1.0
    """Of what varies from trip to trip."""
    low: NonNegative = 0.0
    """Lower end of s_i."""
    high: NonNegative = 5.0
    """Upper end of s_i."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ordered(self.low, self.high)

    def seconds(self, trip: Trip) -> float:
        shift = self.low + (self.high - self.low) * uniform(trip.client_key)
        return shift + self.scale * abs(normal(trip.trip_key))


@dataclass(kw_only=True, frozen=True)
class LogNormal(Delay):
    """median·exp(sigma·N(0, 1)) a trip: most are quick, a few take very long."""

    median: Positive = 1.0
    """Seconds that half of the trips take at most."""
    sigma: Annotated[float, Interval(ge=0, le=20)] = 1.0
    """How unlike the trips are; 0: all alike."""

    def seconds(self, trip: Trip) -> float:
        return self.median * math.exp(self.sigma * normal(trip.trip_key))


@dataclass(kw_only=True, frozen=True)
class Speeds(Delay):
    """Local steps times the client's own seconds a step, with some jitter from trip to trip.

    The speeds are either given, one a client, or drawn: median·exp(sigma·N(0, 1)), and a share `stragglers` of the
    clients is slower by `slowdown`.
    """

    per_client: ClassVar[tuple[str, ...]] = ("seconds_per_step",)

    seconds_per_step: tuple[Positive, ...] = ()
    """One a client; empty: drawn."""
    median: Positive = 0.1
    """Median seconds a step over the clients."""
    sigma: NonNegative = 0.5
    """How unlike the clients are; 0: all alike."""
    stragglers: Probability = 0.0
    """Share of the clients that are slower."""
    slowdown: Positive = 10.0
    """By what factor they are slower."""
    jitter: NonNegative = 0.1
    """How unlike a client's trips are; 0: all alike."""

    def step_seconds(self, trip: Trip) -> float:
        if self.seconds_per_step:
            return given(self.seconds_per_step, trip.client, "seconds_per_step")
        slow = uniform(key(trip.client_key, "straggler")) < self.stragglers
        speed = self.median * math.exp(self.sigma * normal(key(trip.client_key, "speed")))
        return speed * (self.slowdown if slow else 1.0)

    def seconds(self, trip: Trip) -> float:
        return trip.steps * self.step_seconds(trip) * math.exp(self.jitter * normal(trip.trip_key))

    def profile(self, client: int, client_key: int, model_bytes: int) -> tuple[float, float]:
        return self.step_seconds(Trip(client, client_key, 0, 1, 0, 0)), 0.0  # here the line costs nothing


@dataclass(kw_only=True, frozen=True)
class Devices(Delay):
    """Compute plus network: steps·α_i + bytes_down/down_i + bytes_up/up_i.

    α_i (s a step) and the two bandwidths (bytes/s) are given one a client, or drawn log-normally around their medians.
    """

    per_client: ClassVar[tuple[str, ...]] = ("seconds_per_step", "up", "down")

    seconds_per_step: tuple[Positive, ...] = ()
    """α_i, one a client; empty: drawn."""
    up: tuple[Positive, ...] = ()
    """Bytes a second upwards, one a client; empty: drawn."""
    down: tuple[Positive, ...] = ()
    """Bytes a second downwards, one a client; empty: drawn."""
    median_step: Positive = 0.1
    """Median of the α_i."""
    median_up: Positive = 1e6
    """Median bytes a second upwards."""
    median_down: Positive = 4e6
    """Median bytes a second downwards."""
    sigma: NonNegative = 0.5
    """How unlike the clients are; 0: all alike."""

    def seconds(self, trip: Trip) -> float:
        alpha, up = self._step(trip.client, trip.client_key), self._up(trip.client, trip.client_key)
        down = self._of(trip.client, trip.client_key, "down", self.down, self.median_down)
        return trip.steps * alpha + trip.bytes_down / down + trip.bytes_up / up

    def profile(self, client: int, client_key: int, model_bytes: int) -> tuple[float, float]:
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
    if client >= len(values):
        raise ConfigError(f"{len(values)} values, but there is a client {client}: give one a client", key=name)
    return values[client]


def _ordered(low: float, high: float, key: str = "low") -> None:
    if low > high:
        raise ConfigError(f"{low:g} is above the upper end, {high:g}", key=key)
