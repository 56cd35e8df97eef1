"""Local SGD with weight decay and momentum, in the convention of torch.optim.SGD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from offbeat.client.rules.base import ClientRule, Number, State, descend
from offbeat.options import NonNegative


@dataclass(kw_only=True, frozen=True)
class SGD(ClientRule):
    """m ← momentum·m + g + weight_decay·y; y ← y − lr·m. The momentum buffer m is zero at the start of every job."""

    name: ClassVar[str] = "sgd"

    momentum: NonNegative = 0.0
    """Momentum of local steps."""

    elementwise: ClassVar[bool] = True

    @property
    def plain(self) -> bool:
        """Whether there is no momentum and no subclass with a step of its own."""
        return not self.momentum and type(self).step is SGD.step

    @property
    def stateless(self) -> bool:
        """Whether there is no momentum."""
        return not self.momentum

    def begin(self, x: Tensor, extra: Mapping[str, Tensor], client_state: State) -> State:
        """Return the momentum buffer."""
        return {"m": torch.zeros_like(x)} if self.momentum else {}

    def step(self, y: Tensor, g: Tensor, x: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        """Return the next y and the momentum buffer."""
        if self.weight_decay:
            g = g.add(y, alpha=self.weight_decay)
        if self.momentum:
            g = g.add(state["m"], alpha=self.momentum)
            state = {"m": g}
        return descend(y, g, lr, keep=bool(self.momentum)), state
