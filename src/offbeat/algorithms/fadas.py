"""FADAS: federated adaptive asynchronous optimization.

Wang, Wang, Lin and Chen, *FADAS: Towards Federated Adaptive Asynchronous Optimization*, ICML 2024.

    Δ_i     update.delta, with staleness τ_i
    v       the mean (or another aggregate) of the M updates since the last step, into AMSGrad
    τ_max   the largest τ_i among them
    η_t     the delay-adaptive rate: η if τ_max ≤ τ_c, else η/τ_max

Deviations: written from the rule as other papers cite it; the proofs and the authors' code were not available.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.aggregation import Aggregator, Mean
from offbeat.algorithms.base import ASYNCHRONOUS, Algorithm
from offbeat.algorithms.optimizers import AMSGrad, ServerOptimizer
from offbeat.messages import Job, Update
from offbeat.options import NonNegative, Positive


@dataclass(kw_only=True)
class FADAS(Algorithm):
    """FADAS (Wang et al., ICML 2024): buffered AMSGrad with a delay-adaptive server rate."""

    eta: Positive = 0.01
    optimizer: ServerOptimizer = field(default_factory=AMSGrad)
    tau_c: NonNegative = 1.0
    """τ_c: largest staleness that does not reduce the server rate."""
    aggregator: Aggregator = field(default_factory=Mean)
    """Aggregator of the updates of a step."""

    schedulers: ClassVar[tuple[str, ...]] = ASYNCHRONOUS
    state_names: ClassVar[tuple[str, ...]] = ("aggregator", "tau_max")

    def reset(self) -> None:
        """Start with an empty buffer."""
        self.aggregator.start(self.x, self.seed, self.updates)
        self.tau_max = 0

    def accumulate(self, job: Job, update: Update) -> None:
        """Add Δ_i to the buffer and update τ_max."""
        self.aggregator.add(update.client, update.delta)
        self.tau_max = max(self.tau_max, self.tau(job))

    def rate(self) -> float:
        """Return η_t, which `pseudo_gradient` has computed."""
        return self.eta_t

    def pseudo_gradient(self) -> Tensor:
        """Return the mean of the buffered updates and compute η_t from their staleness."""
        eta = super().rate()
        self.eta_t = eta if self.tau_max <= self.tau_c else eta / self.tau_max
        self.tau_max = 0
        return self.aggregator.aggregate()
