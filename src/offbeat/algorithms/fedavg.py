"""FedAvg.  McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, AISTATS 2017.

    Δ_i   update.delta, x_i,K − x
    n_i   update.examples
    v     mean of the cohort's Δ_i, or Σ n_i Δ_i / Σ n_i with `weighted`, or another combination of the Δ_i

Algorithm 1 averages the clients' models with weights n_i; with η = 1 that is x + v.  The unweighted mean is the
default because the papers compared here use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.aggregation import Aggregator, Mean
from offbeat.algorithms.base import Algorithm
from offbeat.errors import ConfigError
from offbeat.messages import Job, Update


@dataclass(kw_only=True)
class FedAvg(Algorithm):
    weighted: bool = False
    """Weigh every client by its number of examples."""
    aggregator: Aggregator = field(default_factory=Mean)
    """How the updates of a step become v."""

    schedulers: ClassVar[tuple[str, ...]] = ("rounds", "available")
    state_names: ClassVar[tuple[str, ...]] = ("aggregator",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighted and not self.aggregator.weighs:
            raise ConfigError("only a mean has weights: give weighted = false", key="weighted")

    def reset(self) -> None:
        self.aggregator.start(self.x, self.seed, self.updates)

    def accumulate(self, job: Job, update: Update) -> None:
        n = float(update.examples) if self.weighted else 1.0
        self.aggregator.add(update.client, update.delta, scale=n, weight=n)

    def pseudo_gradient(self) -> Tensor:
        return self.aggregator.aggregate()
