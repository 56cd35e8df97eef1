"""Local Adagrad, in the convention of torch.optim.Adagrad.

Duchi, Hazan and Singer, *Adaptive Subgradient Methods for Online Learning and Stochastic Optimization*, JMLR 2011.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from offbeat.client.rules.base import Number, State
from offbeat.client.rules.optimizer import LocalOptimizer
from offbeat.options import Positive


@dataclass(kw_only=True, frozen=True)
class Adagrad(LocalOptimizer):
    """s ← s + g²; y ← y − lr·g/(√s + ε). The sum s is zero at the start of every job."""

    name: ClassVar[str] = "adagrad"

    lr: Positive = 1e-2
    """Local learning rate η_l."""
    epsilon: Positive = 1e-10
    """ε: added to the root of s."""

    def moments(self, x: Tensor) -> State:
        """Return s."""
        return {"s": torch.zeros_like(x)}

    def update(self, y: Tensor, g: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        """Return the next y and s."""
        s = state["s"].addcmul(g, g)
        return y - g.div_(s.sqrt().add_(self.epsilon)).mul_(lr), state | {"s": s}
