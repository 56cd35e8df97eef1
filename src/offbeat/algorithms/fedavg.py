"""FedAvg. McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, AISTATS 2017.

    Δ_i   update.delta = x_i,K − x
    n_i   update.examples
    v     the mean of the cohort's Δ_i, Σ n_i Δ_i / Σ n_i with `weighted`, or another aggregate

Deviations: Algorithm 1 averages the clients' models with weights n_i, which is x + v with η = 1. The default is the
unweighted mean, because the papers compared here use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.aggregation import Aggregator, Mean
from offbeat.algorithms.base import SYNCHRONOUS, Algorithm
from offbeat.errors import ConfigError
from offbeat.messages import Job, Update


@dataclass(kw_only=True)
class FedAvg(Algorithm):
    """FedAvg (McMahan et al., AISTATS 2017): the mean of the updates of a synchronous cohort."""

    weighted: bool = False
    """Whether clients are weighted by their number of examples."""
    aggregator: Aggregator = field(default_factory=Mean)
    """Aggregator of the updates of a step."""

    schedulers: ClassVar[tuple[str, ...]] = SYNCHRONOUS
    state_names: ClassVar[tuple[str, ...]] = ("aggregator",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighted and not self.aggregator.supports_weights:
            raise ConfigError("only the aggregator 'mean' supports weights: set weighted = false", key="weighted")

    def reset(self) -> None:
        """Start with an empty buffer."""
        self.aggregator.start(self.x, self.seed, self.updates)

    def accumulate(self, job: Job, update: Update) -> None:
        """Add Δ_i to the buffer, with weight n_i if `weighted`."""
        n = float(update.examples) if self.weighted else 1.0
        self.aggregator.add(update.client, update.delta, scale=n, weight=n)

    def pseudo_gradient(self) -> Tensor:
        """Return the mean of the cohort's updates."""
        return self.aggregator.aggregate()
