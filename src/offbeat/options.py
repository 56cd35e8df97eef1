"""Hyper-parameters: plain dataclass fields whose annotations carry their bounds.

A rule declares `eta: Positive = 1.0`; `Options.__post_init__` refuses a value of the wrong type or out of bounds,
whether it came from Python or from a TOML file.
"""

from __future__ import annotations

import functools
import math
import types
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from offbeat.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Bound:
    """Numbers allowed: low ≤ value ≤ high, the ends left out where `open` names them."""

    low: float = -math.inf
    high: float = math.inf
    open: str = ""

    def admits(self, value: float) -> bool:
        above = value > self.low if "low" in self.open else value >= self.low
        below = value < self.high if "high" in self.open else value <= self.high
        return above and below and math.isfinite(value)

    def __str__(self) -> str:
        parts = []
        if self.low > -math.inf:
            parts.append(f"{'>' if 'low' in self.open else '≥'} {self.low:g}")
        if self.high < math.inf:
            parts.append(f"{'<' if 'high' in self.open else '≤'} {self.high:g}")
        return "a number " + " and ".join(parts) if parts else "a finite number"


Positive = Annotated[float, Bound(low=0, open="low")]
NonNegative = Annotated[float, Bound(low=0)]
Probability = Annotated[float, Bound(low=0, high=1)]
Count = Annotated[int, Bound(low=1)]
Natural = Annotated[int, Bound(low=0)]


@functools.cache
def hints(kind: type) -> dict[str, Any]:
    """The annotations of a class, with their bounds."""
    return get_type_hints(kind, include_extras=True)


def plain(value: Any) -> Any:
    """A NumPy scalar as the Python number that it is; lists as tuples."""
    if isinstance(value, np.generic):
        return value.item()
    return tuple(plain(item) for item in value) if isinstance(value, list) else value


def problem(value: Any, annotation: Any) -> str | None:
    """What is wrong with a value for a field so annotated; None when nothing is."""
    if annotation is Any:
        return None
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        wrong = problem(value, args[0])
        unfit = next(
            (bound for bound in args[1:] if isinstance(bound, Bound) and not wrong and not bound.admits(value)), None
        )
        return wrong or (f"{value!r} is not {unfit}" if unfit else None)
    if origin in (Union, types.UnionType):
        problems = [problem(value, arm) for arm in args if arm is not type(None) or value is None]
        return None if None in problems else problems[-1 if isinstance(value, tuple) else 0]
    if origin is Literal:
        return None if value in args else f"{value!r} is not one of {', '.join(map(repr, args))}"
    if origin is tuple:
        return _tuple_problem(value, args)
    kind = origin or annotation
    if not isinstance(kind, type):
        return None
    if kind is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    elif kind is int:
        fits = isinstance(value, int) and not isinstance(value, bool)
    else:
        fits = isinstance(value, kind)
    names = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}
    return None if fits else f"{value!r} is not {names.get(kind, f'a {kind.__name__}')}"


def _tuple_problem(value: Any, args: tuple[Any, ...]) -> str | None:
    if not isinstance(value, tuple):
        return f"{value!r} is not a list"
    many = len(args) == 2 and args[1] is ...
    if not many and len(value) != len(args):
        return f"{value!r} has {len(value)} entries, {len(args)} expected"
    problems = (
        problem(item, args[0] if many else arg) for item, arg in zip(value, value if many else args, strict=True)
    )
    return next((wrong for wrong in problems if wrong), None)


class Options:
    """Mixin for dataclasses of hyper-parameters, frozen or not."""

    def __post_init__(self) -> None:
        annotations = hints(cast("Any", type(self)))
        for field in fields(cast("Any", self)):  # every subclass is a dataclass
            value = plain(getattr(self, field.name))
            object.__setattr__(self, field.name, value)
            wrong = problem(value, annotations[field.name])
            if wrong:
                raise ConfigError(wrong, key=field.name)
