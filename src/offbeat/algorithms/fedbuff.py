"""FedBuff.  Nguyen et al., *Federated Learning with Buffered Asynchronous Aggregation*, AISTATS 2022.

    Δ_i   update.delta, from the model of τ_i versions ago
    M     number of updates since the last step (the scheduler's buffer)
    s     staleness weight
    v     (1/M) Σ_{i∈S_t} s(τ_i) Δ_i, or another combination of the s(τ_i) Δ_i

With s = 1 this is "Asynchronous FL", Algorithm 2 of Wang et al. 2024 (CA²FL), whose box prints a sum where the text
(eq. E.1) and everybody else use the mean.  FedBuff itself uses s(τ) = (1 + τ)^−½: `staleness = "polynomial"`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.aggregation import Aggregator, Mean
from offbeat.algorithms.base import Algorithm
from offbeat.algorithms.staleness import Constant, Staleness
from offbeat.messages import Job, Update


@dataclass(kw_only=True)
class FedBuff(Algorithm):
    staleness: Staleness = field(default_factory=Constant)
    """s(τ)."""
    aggregator: Aggregator = field(default_factory=Mean)
    """How the updates of a step become v."""

    schedulers: ClassVar[tuple[str, ...]] = (
        "buffered",
        "continuous",
        "per-arrival",
        "rounds",
        "available",
        "periodic",
        "anarchic",
    )
    state_names: ClassVar[tuple[str, ...]] = ("aggregator",)

    def reset(self) -> None:
        self.aggregator.start(self.x, self.seed, self.updates)

    def accumulate(self, job: Job, update: Update) -> None:
        self.aggregator.add(update.client, update.delta, scale=self.staleness(self.tau(job)))

    def pseudo_gradient(self) -> Tensor:
        return self.aggregator.aggregate()
