"""FedAvgM, FedAdam, FedYogi and FedAMSGrad: the mean update as the pseudo-gradient of a server optimizer.

Hsu et al. 2019; Reddi et al., ICLR 2021, Algorithm 2; Wang, Lin and Chen, ICML 2022, Algorithm 1.

    Δ_i   update.delta
    v     the mean (or another aggregate) of the Δ_i since the last step

`algorithm.optimizer` combines the same optimizers with any other algorithm; see `optimizers`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.aggregation import Aggregator, Mean
from offbeat.algorithms.base import ALL_ROUNDS_FIRST, Algorithm
from offbeat.algorithms.optimizers import AMSGrad, Momentum, ServerAdam, ServerOptimizer, Yogi
from offbeat.messages import Job, Update
from offbeat.options import Positive


@dataclass(kw_only=True)
class _FedOpt(Algorithm):
    """The mean of the updates of a step, for any server optimizer."""

    eta: Positive = 0.01
    aggregator: Aggregator = field(default_factory=Mean)
    """Aggregator of the updates of a step."""

    schedulers: ClassVar[tuple[str, ...]] = ALL_ROUNDS_FIRST
    state_names: ClassVar[tuple[str, ...]] = ("aggregator",)

    def reset(self) -> None:
        """Start with an empty buffer."""
        self.aggregator.start(self.x, self.seed, self.updates)

    def accumulate(self, job: Job, update: Update) -> None:
        """Add Δ_i to the buffer."""
        self.aggregator.add(update.client, update.delta)

    def pseudo_gradient(self) -> Tensor:
        """Return the mean of the buffer."""
        return self.aggregator.aggregate()


@dataclass(kw_only=True)
class FedAvgM(_FedOpt):
    """FedAvgM (Hsu et al. 2019): FedAvg with server momentum."""

    eta: Positive = 1.0
    optimizer: ServerOptimizer = field(default_factory=Momentum)


@dataclass(kw_only=True)
class FedAdam(_FedOpt):
    """FedAdam (Reddi et al., ICLR 2021): FedAvg with Adam at the server."""

    optimizer: ServerOptimizer = field(default_factory=ServerAdam)


@dataclass(kw_only=True)
class FedYogi(_FedOpt):
    """FedYogi (Reddi et al., ICLR 2021): FedAvg with Yogi at the server."""

    optimizer: ServerOptimizer = field(default_factory=Yogi)


@dataclass(kw_only=True)
class FedAMSGrad(_FedOpt):
    """FedAMSGrad (Wang, Lin and Chen, ICML 2022): FedAvg with AMSGrad at the server."""

    optimizer: ServerOptimizer = field(default_factory=AMSGrad)
