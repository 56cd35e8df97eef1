"""FedAvgM, FedAdam, FedYogi, FedAMSGrad: the mean update as a pseudo-gradient for a server optimiser.

Hsu et al. 2019; Reddi et al., ICLR 2021, Algorithm 2; Wang, Lin and Chen, ICML 2022, Algorithm 1.

    Δ_i   update.delta
    v     mean of the Δ_i since the last step, or another combination

The same optimisers stand on top of any other direction rule (`algorithm.optimiser`); see `optimisers`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.algorithms.base import Algorithm
from offbeat.algorithms.combine import Combine, Mean
from offbeat.algorithms.optimisers import Adam, AMSGrad, Momentum, ServerOptimiser, Yogi
from offbeat.messages import Job, Update
from offbeat.options import Positive


@dataclass(kw_only=True)
class _FedOpt(Algorithm):
    eta: Positive = 0.01
    combine: Combine = field(default_factory=Mean)
    """How the updates of a step become v."""

    dispatches: ClassVar[tuple[str, ...]] = (
        "rounds",
        "available",
        "buffered",
        "keep-busy",
        "per-arrival",
        "periodic",
        "anarchic",
    )
    state_names: ClassVar[tuple[str, ...]] = ("combine",)

    def reset(self) -> None:
        self.combine.start(self.x, self.seed, self.updates)

    def absorb(self, job: Job, update: Update) -> None:
        self.combine.add(update.client, update.delta)

    def direction(self) -> Tensor:
        return self.combine.take()


@dataclass(kw_only=True)
class FedAvgM(_FedOpt):
    eta: Positive = 1.0
    optimiser: ServerOptimiser = field(default_factory=Momentum)


@dataclass(kw_only=True)
class FedAdam(_FedOpt):
    optimiser: ServerOptimiser = field(default_factory=Adam)


@dataclass(kw_only=True)
class FedYogi(_FedOpt):
    optimiser: ServerOptimiser = field(default_factory=Yogi)


@dataclass(kw_only=True)
class FedAMSGrad(_FedOpt):
    optimiser: ServerOptimiser = field(default_factory=AMSGrad)
