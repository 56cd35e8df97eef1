"""FedDyn's client.

Acar et al., *Federated Learning Based on Dynamic Regularization*, ICLR 2021, Algorithm 1.

    g_i   stored between the client's jobs, initially zero
    y     ← y − η_l (g − g_i + α (y − x))
    g_i   ← g_i − α (y_K − x)

FedDyn's server is the algorithm `feddyn` with the same α. Under another algorithm only the local correction applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from offbeat.client.rules.base import ClientRule, Number, State, descend
from offbeat.options import Positive


@dataclass(kw_only=True, frozen=True)
class Dyn(ClientRule):
    """SGD with FedDyn's dynamic regularizer."""

    name: ClassVar[str] = "dyn"

    alpha: Positive = 0.01
    """Strength α of the regularizer; the algorithm `feddyn` needs the same value."""

    client_state: ClassVar[tuple[str, ...]] = ("g_i",)
    elementwise: ClassVar[bool] = True

    def begin(self, x: Tensor, extra: Mapping[str, Tensor], client_state: State) -> State:
        """Return g_i."""
        return {"g_i": client_state["g_i"]}

    def step(self, y: Tensor, g: Tensor, x: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        """Return y − lr·(g − g_i + α(y − x))."""
        if self.weight_decay:
            g = g.add(y, alpha=self.weight_decay)
        return descend(y, (g - state["g_i"]).add(y - x, alpha=self.alpha), lr), state

    def finish(self, y: Tensor, x: Tensor, lr: Number, steps: Number, state: State) -> tuple[State, State]:
        """Return the new g_i, which stays on the client."""
        return {}, {"g_i": state["g_i"].sub(y - x, alpha=self.alpha)}
