"""Hyper-parameters: plain dataclass fields whose annotations carry their bounds.

A rule declares `eta: Positive = 1.0`; `Options.__post_init__` refuses a value out of bounds, whether it came from
Python or from a TOML file.  Types are checked where text comes in (`experiments.config`); bounds are checked here.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields
from numbers import Real
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

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


def _bounds(annotation: object) -> list[Bound]:
    """The bounds anywhere inside an annotation: `Positive | None`, `tuple[Positive, ...]`."""
    if get_origin(annotation) is Annotated:
        return [meta for meta in get_args(annotation) if isinstance(meta, Bound)]
    return [bound for part in get_args(annotation) for bound in _bounds(part)]


class Options:
    """Mixin for dataclasses of hyper-parameters, frozen or not."""

    def __post_init__(self) -> None:
        annotations = hints(cast("Any", type(self)))
        for field in fields(cast("Any", self)):  # every subclass is a dataclass
            value = getattr(self, field.name)
            for bound in _bounds(annotations[field.name]):
                for number in value if isinstance(value, (tuple, list)) else (value,):
                    if isinstance(number, Real) and not bound.admits(float(number)):
                        raise ConfigError(f"{value!r} is not {bound}", key=field.name)
