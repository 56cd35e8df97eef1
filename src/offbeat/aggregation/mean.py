"""The weighted mean of the updates of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from offbeat.aggregation.base import Aggregator


@dataclass(kw_only=True)
class Mean(Aggregator):
    """The mean Σ scale·value / Σ weight. It needs the memory of one vector for any number of updates."""

    supports_weights: ClassVar[bool] = True
    state_names: ClassVar[tuple[str, ...]] = ("total", "weight")

    def start(self, like: Tensor, seed: int = 0, updates: int | None = None) -> None:
        """Start with an empty sum."""
        self.total, self.weight = torch.zeros_like(like), 0.0

    def add(self, client: int, value: Tensor, scale: float = 1.0, weight: float = 1.0) -> None:
        """Add scale·value to the sum."""
        first = not self.weight
        if scale == 1.0:  # the common case; for a small model, multiplying by a scalar takes twice as long
            (self.total.copy_ if first else self.total.add_)(value)
        elif first:
            torch.mul(value, scale, out=self.total)
        else:
            self.total.add_(value, alpha=scale)
        self.weight += weight

    def aggregate(self) -> Tensor:
        """Return the sum divided by the total weight."""
        mean = self.total.div_(self.weight)
        self.weight = 0.0
        return mean
