"""Where a search looks: what each key may be."""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offbeat.errors import ConfigError, nearest


class Distribution(ABC):
    """What a key may be."""

    log = False
    """Whether figures show the key on a logarithmic axis."""

    @abstractmethod
    def at(self, share: float) -> Any:
        """Return the value below which a share of the distribution lies, 0 ≤ share < 1."""

    @abstractmethod
    def suggest(self, trial: Any, key: str) -> Any:
        """Return the value that a trial of Optuna suggests."""

    def values(self) -> Sequence[Any] | None:
        """Return all values, or None if there are infinitely many."""
        return None


@dataclass(frozen=True)
class Uniform(Distribution):
    """Numbers from `low` to `high`, all equally likely."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)

    def at(self, share: float) -> float:
        """Return the value at a share of the range."""
        return _short(self.low + share * (self.high - self.low), self)

    def suggest(self, trial: Any, key: str) -> Any:
        """Return the value that a trial of Optuna suggests."""
        return trial.suggest_float(key, self.low, self.high)


@dataclass(frozen=True)
class LogUniform(Distribution):
    """Numbers from `low` to `high`, all orders of magnitude equally likely."""

    low: float
    high: float
    log = True

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)
        if self.low <= 0:
            raise ConfigError(f"a logarithmic range begins above 0, not at {self.low}")

    def at(self, share: float) -> float:
        """Return the value at a share of the range of its logarithm."""
        return _short(math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low))), self)

    def suggest(self, trial: Any, key: str) -> Any:
        """Return the value that a trial of Optuna suggests."""
        return trial.suggest_float(key, self.low, self.high, log=True)


@dataclass(frozen=True)
class Integers(Distribution):
    """Integers from `low` to `high`, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not all(isinstance(bound, int) for bound in (self.low, self.high)):
            raise ConfigError(f"{self.low!r} and {self.high!r} are not two integers")
        _check_range(self.low, self.high)

    def at(self, share: float) -> int:
        """Return the integer at a share of the range."""
        return self.low + int(share * (self.high - self.low + 1))

    def suggest(self, trial: Any, key: str) -> Any:
        """Return the value that a trial of Optuna suggests."""
        return trial.suggest_int(key, self.low, self.high)

    def values(self) -> range:
        """Return all integers."""
        return range(self.low, self.high + 1)


@dataclass(frozen=True)
class OneOf(Distribution):
    """One of some values, all equally likely."""

    options: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.options:
            raise ConfigError("a choice needs at least one value")

    def at(self, share: float) -> Any:
        """Return the value at a share of the list."""
        return self.options[int(share * len(self.options))]

    def suggest(self, trial: Any, key: str) -> Any:
        """Return the value that a trial of Optuna suggests."""
        return self.options[trial.suggest_categorical(key, list(range(len(self.options))))]

    def values(self) -> tuple[Any, ...]:
        """Return all values."""
        return self.options


def uniform(low: float, high: float) -> Uniform:
    """Return the numbers from `low` to `high`, all equally likely."""
    return Uniform(low, high)


def log_uniform(low: float, high: float) -> LogUniform:
    """Return the numbers from `low` to `high`, all orders of magnitude equally likely."""
    return LogUniform(low, high)


def integers(low: int, high: int) -> Integers:
    """Return the integers from `low` to `high`, both included."""
    return Integers(low, high)


def choice(values: Sequence[Any]) -> OneOf:
    """Return some values, all equally likely; a list in a space means the same."""
    return OneOf(tuple(values))


KINDS = {"uniform": uniform, "log_uniform": log_uniform, "integers": integers}
Space = dict[str, Distribution]


def space_of(given: Mapping[str, Any]) -> Space:
    """Return a search space.

    Args:
        given: What each key may be: a list, a distribution, or a table such as { log_uniform = [0.001, 1] }. Keys may
            be dotted or tables in tables.

    Raises:
        ConfigError: There is no key, or what it may be is not valid.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"{given!r} is not a table of keys, such as client.lr = [0.01, 0.1]", key="space")
    space = dict(_entries(given))
    if not space:
        raise ConfigError("empty; give at least one key, such as client.lr = [0.01, 0.1]", key="space")
    return space


def _entries(given: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Distribution]]:
    for name, value in given.items():
        key = path + str(name)
        if isinstance(value, Mapping) and not value.keys() & {*KINDS, "choice"} and value:
            first = next(iter(value))
            if difflib.get_close_matches(first, [*KINDS, "choice"], cutoff=0.8):
                raise ConfigError(f"unknown range {first!r}; {nearest(first, [*KINDS, 'choice'])}", key=key)
            yield from _entries(value, f"{key}.")
            continue
        if key == "seed" or key.endswith(".name"):
            raise ConfigError("not a hyperparameter: rules are variants, and seeds have a key of their own", key=key)
        try:
            yield key, _distribution(value)
        except ConfigError as error:
            raise error.within(key) from None


def _distribution(value: Any) -> Distribution:
    if isinstance(value, Distribution):
        return value
    if isinstance(value, list | tuple):
        return choice(value)
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, given),) = value.items()
        if isinstance(given, list) and kind == "choice":
            return choice(given)
        if isinstance(given, list) and kind in KINDS:
            if len(given) != 2:
                raise ConfigError(f"{kind} needs two numbers, [low, high], not {given!r}")
            return KINDS[kind](*given)
    raise ConfigError(f"{value!r} is neither a list nor a range such as {{ log_uniform = [0.001, 1] }}")


def _short(value: float, bounds: Uniform | LogUniform) -> float:
    """Return a value with four digits: no search needs more, and people read them."""
    return min(max(float(f"{value:.4g}"), bounds.low), bounds.high)


def _check_range(low: object, high: object) -> None:
    for bound in (low, high):
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not math.isfinite(bound):
            raise ConfigError(f"{bound!r} is not a number")
    if low >= high:  # type: ignore[operator]
        raise ConfigError(f"the range begins at {low}, which is not below its end, {high}")
