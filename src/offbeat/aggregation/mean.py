"""What most rules gather between two steps: a weighted mean, in one vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from offbeat.aggregation.base import Aggregator


@dataclass(kw_only=True)
class Mean(Aggregator):
    """Σ scale·value / Σ weight.  One vector, however many updates make a step."""

    weighs: ClassVar[bool] = True
    state_names: ClassVar[tuple[str, ...]] = ("total", "weight")

    def start(self, like: Tensor, seed: int = 0, updates: int | None = None) -> None:
        self.total, self.weight = torch.zeros_like(like), 0.0

    def add(self, client: int, value: Tensor, scale: float = 1.0, weight: float = 1.0) -> None:
        first = not self.weight
        if scale == 1.0:  # as usual; for a small model torch takes twice as long with a scalar
            (self.total.copy_ if first else self.total.add_)(value)
        elif first:
            torch.mul(value, scale, out=self.total)
        else:
            self.total.add_(value, alpha=scale)
        self.weight += weight

    def aggregate(self) -> Tensor:
        mean = self.total.div_(self.weight)
        self.weight = 0.0
        return mean
