"""Local Adam and AdamW, in the convention of torch.optim.

Kingma and Ba, *Adam: A Method for Stochastic Optimization*, ICLR 2015; Loshchilov and Hutter, *Decoupled Weight Decay
Regularization*, ICLR 2019.

    m     ← β₁ m + (1 − β₁) g
    v     ← β₂ v + (1 − β₂) g²
    y     ← y − η_l (m/(1 − β₁^t)) / (√(v/(1 − β₂^t)) + ε)
    t     steps of the job so far, this one included
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from offbeat.client.rules.base import Number, State
from offbeat.client.rules.optimizer import LocalOptimizer
from offbeat.options import Interval, NonNegative, Positive

Decay = Annotated[float, Interval(ge=0, lt=1)]


@dataclass(kw_only=True, frozen=True)
class Adam(LocalOptimizer):
    """Adam. The moments are zero at the start of every job."""

    name: ClassVar[str] = "adam"

    lr: Positive = 1e-3
    """Local learning rate η_l."""
    beta1: Decay = 0.9
    """β₁: decay of the first moment."""
    beta2: Decay = 0.999
    """β₂: decay of the second moment."""
    epsilon: Positive = 1e-8
    """ε: added to the root of the second moment."""

    def moments(self, x: Tensor) -> State:
        """Return m, v and t."""
        steps = torch.zeros((*x.shape[:-1], 1), dtype=torch.float64, device=x.device)
        zeros = x.new_zeros(1).expand_as(x)  # takes no memory, and no step writes to it
        return {"m": zeros, "v": zeros, "t": steps}

    def corrections(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return 1 − β₁^t and √(1 − β₂^t), in double precision, since 1 − β₂^t is small at first."""
        return 1 - self.beta1**t, (1 - self.beta2**t).sqrt()

    def update(self, y: Tensor, g: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        """Return the next y, m, v and t."""
        m = state["m"].mul(self.beta1).add_(g, alpha=1 - self.beta1)
        v = state["v"].mul(self.beta2).addcmul_(g, g, value=1 - self.beta2)
        t = state["t"] + 1
        first, second = self.corrections(t)
        rate, root = (lr / first).to(y.dtype), second.to(y.dtype)
        if self.decoupled and self.weight_decay:
            y = y * (1 - lr * self.weight_decay)
        direction = m / v.sqrt().div_(root).add_(self.epsilon)
        return y - direction.mul_(rate), state | {"m": m, "v": v, "t": t}


@dataclass(kw_only=True, frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: y ← (1 − η_l λ) y in every step."""

    name: ClassVar[str] = "adamw"
    decoupled: ClassVar[bool] = True

    weight_decay: NonNegative = 0.01
    """λ: y shrinks by the factor 1 − η_l λ in every step."""
