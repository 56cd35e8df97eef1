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
from offbeat.algorithms.mean import Mean
from offbeat.messages import Job, Update


@dataclass(kw_only=True)
class FedAvg(Algorithm):
    weighted: bool = False
    """Weigh every client by its number of examples."""

    dispatches: ClassVar[tuple[str, ...]] = ("rounds", "available")
    state_names: ClassVar[tuple[str, ...]] = ("mean",)

    def reset(self) -> None:
        self.mean = Mean(self.x)

    def absorb(self, job: Job, update: Update) -> None:
        n = float(update.examples) if self.weighted else 1.0
        self.mean.add(update.delta, scale=n, weight=n)

    def direction(self) -> Tensor:
        return self.mean.take()
