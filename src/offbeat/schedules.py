"""Learning-rate schedules: factors of a rate over the effective steps of the server.

`client.schedule` applies to the local rate η_l of the jobs that are sent, `algorithm.eta_schedule` to the server's rate
η. Both count t, the number of steps that have moved x, so that rounds of waiting do not change a rate.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from offbeat.errors import ConfigError
from offbeat.options import Options, Positive, PositiveInt, Probability

__all__ = ["SCHEDULES", "ConstantRate", "CosineDecay", "InverseDecay", "Schedule", "StepDecay", "WarmUp"]


class Schedule(Options, ABC):
    """Interface for schedules."""

    @abstractmethod
    def factor(self, t: int) -> float:
        """Return the factor of the rate after t effective steps."""


@dataclass(kw_only=True, frozen=True)
class ConstantRate(Schedule):
    """The same rate throughout."""

    def factor(self, t: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(kw_only=True, frozen=True)
class InverseDecay(Schedule):
    """η_t = η_0/(t + a), as in MIFA's paper."""

    offset: Positive = 1.0
    """a: the first rate is η_0/a."""

    def factor(self, t: int) -> float:
        """Return 1/(t + a)."""
        return 1.0 / (t + self.offset)


@dataclass(kw_only=True, frozen=True)
class StepDecay(Schedule):
    """η_t = η_0·γ^⌊t/every⌋."""

    every: PositiveInt
    """Steps between two reductions."""
    gamma: Positive = 0.1
    """γ: factor of each reduction."""

    def factor(self, t: int) -> float:
        """Return γ^⌊t/every⌋."""
        return float(self.gamma ** (t // self.every))


@dataclass(kw_only=True, frozen=True)
class CosineDecay(Schedule):
    """Half a cosine from η_0 down to a minimum, which is kept afterwards."""

    steps: PositiveInt
    """Steps until the minimum."""
    minimum: Probability = 0.0
    """The minimum as a share of η_0."""

    def factor(self, t: int) -> float:
        """Return the value of the cosine."""
        share = 0.5 * (1 + math.cos(math.pi * min(t, self.steps) / self.steps))
        return self.minimum + (1 - self.minimum) * share


@dataclass(kw_only=True, frozen=True)
class WarmUp(Schedule):
    """A linear increase to η_0, followed by another schedule that starts counting at its end."""

    steps: PositiveInt
    """Steps of the increase; the first one has the rate η_0/steps."""
    then: Schedule = field(default_factory=ConstantRate)
    """Schedule after the increase."""

    def factor(self, t: int) -> float:
        """Return (t + 1)/steps, then the factor of the other schedule."""
        return (t + 1) / self.steps if t < self.steps else self.then.factor(t - self.steps)


@dataclass(kw_only=True, frozen=True)
class CustomSchedule(Schedule):
    """A custom schedule: a function of t that returns the factor of the rate."""

    make: Callable[..., float]
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def factor(self, t: int) -> float:
        """Return the function's value."""
        value = self.make(t, **self.options)
        if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
            raise ConfigError(f"the function returned {value!r} for t = {t}; a number ≥ 0 is needed", key="schedule")
        return float(value)


def as_schedule(given: Any) -> Any:
    """Return a function of t as a schedule; anything else unchanged, for the validation of the options."""
    return CustomSchedule(make=given) if callable(given) and not isinstance(given, Schedule | type) else given


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": ConstantRate,
    "inverse": InverseDecay,
    "step": StepDecay,
    "cosine": CosineDecay,
    "warm-up": WarmUp,
}
