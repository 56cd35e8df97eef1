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

from offbeat.algorithms.base import Algorithm
from offbeat.algorithms.combine import Combine, Mean
from offbeat.algorithms.optimisers import AMSGrad, ServerOptimiser
from offbeat.messages import Job, Update
from offbeat.options import NonNegative, Positive


@dataclass(kw_only=True)
class FADAS(Algorithm):
    eta: Positive = 0.01
    optimiser: ServerOptimiser = field(default_factory=AMSGrad)
    tau_c: NonNegative = 1.0
    """τ_c: largest delay that does not slow the server down."""
    combine: Combine = field(default_factory=Mean)
    """How the updates of a step become v."""

    dispatches: ClassVar[tuple[str, ...]] = ("buffered", "keep-busy", "per-arrival", "periodic", "anarchic")
    state_names: ClassVar[tuple[str, ...]] = ("combine", "tau_max")

    def reset(self) -> None:
        self.combine.start(self.x, self.seed, self.updates)
        self.tau_max = 0

    def absorb(self, job: Job, update: Update) -> None:
        self.combine.add(update.client, update.delta)
        self.tau_max = max(self.tau_max, self.tau(job))

    def rate(self) -> float:
        return self.slowed

    def direction(self) -> Tensor:
        self.slowed = self.eta if self.tau_max <= self.tau_c else self.eta / self.tau_max
        self.tau_max = 0
        return self.combine.take()
