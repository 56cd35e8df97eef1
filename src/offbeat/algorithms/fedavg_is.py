"""FedAvg with importance sampling under unavailability.  Gu et al., NeurIPS 2021 (MIFA), Algorithm 2, line 8.

    A(t)  the devices that were awake, with known probabilities p_i
    v     (1/N) Σ_{i∈A(t)} Δ_i/p_i

The box prints 1/|A(t)| in place of 1/N; only with 1/N is v an unbiased estimate of the mean over all devices.  The
probabilities are those of the world's availability; a law that has none is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from offbeat.algorithms.base import Algorithm
from offbeat.errors import ConfigError
from offbeat.messages import Job, Update


@dataclass(kw_only=True)
class FedAvgIS(Algorithm):
    dispatches: ClassVar[tuple[str, ...]] = ("available",)
    state_names: ClassVar[tuple[str, ...]] = ("total",)

    def reset(self) -> None:
        self.total = self.x.new_zeros(self.x.shape)

    def absorb(self, job: Job, update: Update) -> None:
        p = self.participation(update.client)
        if not p:
            raise ConfigError(
                "importance sampling needs every client's probability of being awake", key="world.availability"
            )
        self.total.add_(update.delta, alpha=1 / p)

    def direction(self) -> Tensor:
        v = self.total / self.clients
        self.reset()
        return v
