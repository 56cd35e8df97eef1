"""FedProx's client, also used by FedAsync.

Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from offbeat.client.rules.base import State
from offbeat.client.rules.correction import Correction
from offbeat.options import NonNegative


@dataclass(kw_only=True, frozen=True)
class Prox(Correction):
    """Descent on F_i(y) + (mu/2)‖y − x‖², where x is the model that the client received."""

    name: ClassVar[str] = "prox"

    mu: NonNegative = 0.01
    """Weight μ of the proximal term."""

    def corrected(self, g: Tensor, y: Tensor, x: Tensor, state: State) -> Tensor:
        """Return g + μ(y − x)."""
        return g.add(y - x, alpha=self.mu)
