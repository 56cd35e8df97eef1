"""FedAvgM, FedAdam, FedYogi, FedAMSGrad: the mean update as a pseudo-gradient for a server optimizer.

Hsu et al. 2019; Reddi et al., ICLR 2021, Algorithm 2; Wang, Lin and Chen, ICML 2022, Algorithm 1.

    Δ_i   update.delta
    v     mean of the Δ_i since the last step, or another combination

The same optimizers stand on top of any other direction rule (`algorithm.optimizer`); see `optimizers`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.aggregation import Aggregator, Mean
from offbeat.algorithms.base import Algorithm
from offbeat.algorithms.optimizers import Adam, AMSGrad, Momentum, ServerOptimizer, Yogi
from offbeat.messages import Job, Update
from offbeat.options import Positive


@dataclass(kw_only=True)
class _FedOpt(Algorithm):
    eta: Positive = 0.01
    aggregator: Aggregator = field(default_factory=Mean)
    """How the updates of a step become v."""

    schedulers: ClassVar[tuple[str, ...]] = (
        "rounds",
        "available",
        "buffered",
        "continuous",
        "per-arrival",
        "periodic",
        "anarchic",
    )
    state_names: ClassVar[tuple[str, ...]] = ("aggregator",)

    def reset(self) -> None:
        self.aggregator.start(self.x, self.seed, self.updates)

    def accumulate(self, job: Job, update: Update) -> None:
        self.aggregator.add(update.client, update.delta)

    def pseudo_gradient(self) -> Tensor:
        return self.aggregator.aggregate()


@dataclass(kw_only=True)
class FedAvgM(_FedOpt):
    eta: Positive = 1.0
    optimizer: ServerOptimizer = field(default_factory=Momentum)


@dataclass(kw_only=True)
class FedAdam(_FedOpt):
    optimizer: ServerOptimizer = field(default_factory=Adam)


@dataclass(kw_only=True)
class FedYogi(_FedOpt):
    optimizer: ServerOptimizer = field(default_factory=Yogi)


@dataclass(kw_only=True)
class FedAMSGrad(_FedOpt):
    optimizer: ServerOptimizer = field(default_factory=AMSGrad)
