"""FedAvg.  McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, AISTATS 2017.

    Δ_i   update.delta, x_i,K − x
    n_i   update.examples
    v     mean of the cohort's Δ_i, or Σ n_i Δ_i / Σ n_i with `weighted`

Algorithm 1 averages the clients' models with weights n_i; with η = 1 that is x + v.  The unweighted mean is the
default because the papers compared here use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from offbeat.algorithms.base import Algorithm
from offbeat.messages import Job, Update


@dataclass(kw_only=True)
class FedAvg(Algorithm):
    weighted: bool = False
    """Weigh every client by its number of examples."""

    dispatches: ClassVar[tuple[str, ...]] = ("rounds", "available")
    state_names: ClassVar[tuple[str, ...]] = ("total", "weight")

    def reset(self) -> None:
        self.total = self.x.new_zeros(self.x.shape)
        self.weight = 0.0

    def absorb(self, job: Job, update: Update) -> None:
        n = float(update.examples) if self.weighted else 1.0
        self.total.add_(update.delta, alpha=n)
        self.weight += n

    def direction(self) -> Tensor:
        v = self.total / self.weight
        self.reset()
        return v
