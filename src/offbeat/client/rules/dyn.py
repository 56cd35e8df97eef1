"""FedDyn's client.

Acar et al., *Federated Learning Based on Dynamic Regularization*, ICLR 2021, Algorithm 1.

    g_i   stored between the client's jobs, initially zero
    y     ← y − η_l (g − g_i + α (y − x))
    g_i   ← g_i − α (y_K − x)

FedDyn's server is the algorithm `feddyn` with the same α. Under another algorithm only the local correction applies.

With another optimizer, the same corrected gradient is the gradient of F_i(y) − ⟨g_i, y⟩ + (α/2)‖y − x‖², and g_i is
updated as above: the paper's rule only asks that y_K is close to the minimizer, whatever finds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from offbeat.client.rules.base import Number, State
from offbeat.client.rules.correction import Correction
from offbeat.options import Positive


@dataclass(kw_only=True, frozen=True)
class Dyn(Correction):
    """Descent with FedDyn's dynamic regularizer."""

    name: ClassVar[str] = "dyn"

    alpha: Positive = 0.01
    """Strength α of the regularizer; the algorithm `feddyn` needs the same value."""

    client_state: ClassVar[tuple[str, ...]] = ("g_i",)

    def begin(self, x: Tensor, extra: Mapping[str, Tensor], client_state: State) -> State:
        """Return g_i and the optimizer's moments."""
        return self.optimizer.moments(x) | {"g_i": client_state["g_i"]}

    def corrected(self, g: Tensor, y: Tensor, x: Tensor, state: State) -> Tensor:
        """Return g − g_i + α(y − x)."""
        return (g - state["g_i"]).add(y - x, alpha=self.alpha)

    def finish(self, y: Tensor, x: Tensor, lr: Number, steps: Number, state: State) -> tuple[State, State]:
        """Return the new g_i, which stays on the client."""
        return {}, {"g_i": state["g_i"].sub(y - x, alpha=self.alpha)}
