"""What most rules gather between two steps: a weighted mean, in one vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Mean:
    """Σ scale·value / Σ weight over what was added since the last `take`."""

    def __init__(self, like: Tensor) -> None:
        self.total, self.weight = torch.zeros_like(like), 0.0

    def add(self, value: Tensor, scale: float = 1.0, weight: float = 1.0) -> None:
        first = not self.weight
        if scale == 1.0:  # as usual; for a small model torch takes twice as long with a scalar
            (self.total.copy_ if first else self.total.add_)(value)
        elif first:
            torch.mul(value, scale, out=self.total)
        else:
            self.total.add_(value, alpha=scale)
        self.weight += weight

    def take(self) -> Tensor:
        """The mean, and begin anew.  It is lent: it holds until something is added."""
        mean = self.total.div_(self.weight)
        self.weight = 0.0
        return mean

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total, self.weight = state["total"], state["weight"]
