"""FADAS.  Wang, Wang, Lin and Chen, *FADAS: Towards Federated Adaptive Asynchronous Optimization*, ICML 2024.

    Δ_i     update.delta, τ_i versions old
    v       mean of the M updates since the last step, or another combination, into AMSGrad
    τ_max   the largest τ_i among them
    η_t     η if τ_max ≤ τ_c, else η/τ_max: the delay-adaptive rate

Written from the published rule as it is cited; the proofs and the authors' code were not at hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.aggregation import Aggregator, Mean
from offbeat.algorithms.base import Algorithm
from offbeat.algorithms.optimizers import AMSGrad, ServerOptimizer
from offbeat.messages import Job, Update
from offbeat.options import NonNegative, Positive


@dataclass(kw_only=True)
class FADAS(Algorithm):
    eta: Positive = 0.01
    optimizer: ServerOptimizer = field(default_factory=AMSGrad)
    tau_c: NonNegative = 1.0
    """τ_c: largest delay that does not slow the server down."""
    aggregator: Aggregator = field(default_factory=Mean)
    """How the updates of a step become v."""

    schedulers: ClassVar[tuple[str, ...]] = ("buffered", "continuous", "per-arrival", "periodic", "anarchic")
    state_names: ClassVar[tuple[str, ...]] = ("aggregator", "tau_max")

    def reset(self) -> None:
        self.aggregator.start(self.x, self.seed, self.updates)
        self.tau_max = 0

    def accumulate(self, job: Job, update: Update) -> None:
        self.aggregator.add(update.client, update.delta)
        self.tau_max = max(self.tau_max, self.tau(job))

    def rate(self) -> float:
        return self.slowed

    def pseudo_gradient(self) -> Tensor:
        self.slowed = self.eta if self.tau_max <= self.tau_c else self.eta / self.tau_max
        self.tau_max = 0
        return self.aggregator.aggregate()
