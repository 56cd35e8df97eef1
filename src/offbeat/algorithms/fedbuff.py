"""FedBuff. Nguyen et al., *Federated Learning with Buffered Asynchronous Aggregation*, AISTATS 2022.

    Δ_i   update.delta, computed from the model of τ_i versions ago
    S_t   the updates since the last step
    M     |S_t|, the buffer of the scheduler
    s     staleness function
    v     (1/M) Σ_{i∈S_t} s(τ_i) Δ_i, or another aggregate of the s(τ_i) Δ_i

FedBuff uses s(τ) = (1 + τ)^−½: `staleness = "polynomial"`. With the default s = 1 this is "Asynchronous FL",
Algorithm 2 of Wang et al., FL-ICML 2023 (CA²FL), whose box prints a sum where the text (eq. E.1) and all other papers
use the mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.aggregation import Aggregator, Mean
from offbeat.algorithms.base import ALL_BUFFERED_FIRST, Algorithm
from offbeat.algorithms.staleness import Constant, Staleness
from offbeat.messages import Job, Update


@dataclass(kw_only=True)
class FedBuff(Algorithm):
    """FedBuff (Nguyen et al., AISTATS 2022): the mean of a buffer of updates, weighted by their staleness."""

    staleness: Staleness = field(default_factory=Constant)
    """Staleness function s(τ)."""
    aggregator: Aggregator = field(default_factory=Mean)
    """Aggregator of the updates of a step."""

    schedulers: ClassVar[tuple[str, ...]] = ALL_BUFFERED_FIRST
    state_names: ClassVar[tuple[str, ...]] = ("aggregator",)

    def reset(self) -> None:
        """Start with an empty buffer."""
        self.aggregator.start(self.x, self.seed, self.updates)

    def accumulate(self, job: Job, update: Update) -> None:
        """Add s(τ_i) Δ_i to the buffer."""
        self.aggregator.add(update.client, update.delta, scale=self.staleness(self.tau(job)))

    def pseudo_gradient(self) -> Tensor:
        """Return the mean of the buffer."""
        return self.aggregator.aggregate()
