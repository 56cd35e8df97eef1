"""FedProx's client, also used by FedAsync.

Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from offbeat.client.rules.base import ClientRule, Number, State, descend
from offbeat.options import NonNegative


@dataclass(kw_only=True, frozen=True)
class Prox(ClientRule):
    """SGD on F_i(y) + (mu/2)‖y − x‖², where x is the model that the client received."""

    name: ClassVar[str] = "prox"

    mu: NonNegative = 0.01
    """Weight μ of the proximal term."""

    elementwise: ClassVar[bool] = True

    def step(self, y: Tensor, g: Tensor, x: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        """Return y − lr·(g + μ(y − x))."""
        if self.weight_decay:
            g = g.add(y, alpha=self.weight_decay)
        return descend(y, g.add(y - x, alpha=self.mu), lr), state
