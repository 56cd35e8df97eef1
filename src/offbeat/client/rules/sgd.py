"""Local SGD with weight decay and momentum, in the convention of torch.optim.SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from offbeat.client.rules.base import Number, State, descend
from offbeat.client.rules.optimizer import LocalOptimizer
from offbeat.errors import ConfigError
from offbeat.options import NonNegative


@dataclass(kw_only=True, frozen=True)
class SGD(LocalOptimizer):
    """m ← momentum·m + g + weight_decay·y; y ← y − lr·m. The momentum buffer m is zero at the start of every job."""

    name: ClassVar[str] = "sgd"

    momentum: NonNegative = 0.0
    """Momentum of local steps."""
    nesterov: bool = False
    """Whether a step is lr·(g + momentum·m)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise ConfigError("true, but there is no momentum; set momentum", key="nesterov")

    @property
    def plain(self) -> bool:
        """Whether there is no momentum and no subclass with a step of its own."""
        return not self.momentum and type(self).step is LocalOptimizer.step and type(self).update is SGD.update

    def moments(self, x: Tensor) -> State:
        """Return the momentum buffer."""
        return {"m": torch.zeros_like(x)} if self.momentum else {}

    def update(self, y: Tensor, g: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        """Return the next y and the momentum buffer."""
        if not self.momentum:
            return descend(y, g, lr), state
        m = g.add(state["m"], alpha=self.momentum)
        if self.nesterov:
            return descend(y, g.add(m, alpha=self.momentum), lr), state | {"m": m}
        return descend(y, m, lr, keep=True), state | {"m": m}
