"""The name of a metric and how to read it; without torch, so that reports can use it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class MetricInfo:
    """The name of a metric and how to read it."""

    name: str
    higher_is_better: bool | None
    unit: str = ""

    @property
    def scale(self) -> float:
        """The factor for display: 100 for percentages."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def title(self) -> str:
        """The name and the unit for axes and columns, such as "accuracy (%)"."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def format(self, value: float) -> str:
        """Return a value for display, without its unit."""
        return f"{self.scale * value:.1f}" if self.unit == "%" else f"{value:.4g}"

    def target(self, value: float) -> float | None:
        """Return a target in the metric's own scale, or None if it cannot be one.

        For a percentage, values up to 1 are fractions and larger ones, up to 100, are percent: 0.85 and 85 are equal.
        """
        if self.unit != "%":
            return value
        fraction = value if value <= 1 else value / 100
        return fraction if 0 <= fraction <= 1 else None

    def best(self, values: Sequence[float]) -> float:
        """Return the best of some values; the highest if the direction is unknown, NaN if all are."""
        known = [value for value in values if not math.isnan(value)]
        if not known:
            return math.nan
        return min(known) if self.higher_is_better is False else max(known)

    def reaches(self, value: float, target: float) -> bool:
        """Return whether a value is at least as good as a target."""
        return value <= target if self.higher_is_better is False else value >= target


ACCURACY = MetricInfo("accuracy", True, "%")
LOSS = MetricInfo("loss", False)
