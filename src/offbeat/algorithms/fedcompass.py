"""FedCompass: local work sized by computing power.

Li, He, Xu, Chard, Madduri and others, *FedCompass: Efficient Cross-Silo Federated Learning on Heterogeneous Client
Devices using a Computing Power-Aware Scheduler*, ICLR 2024.

    α_i   seconds per local step of client i
    k_i   local steps of client i: as many as fit into the time that the fastest client needs for Q_max, at least Q_min
    s     staleness function
    v     (1/N) Σ_i s(τ_i) Δ_i over the arrivals since the last step

Clients of different speed thus arrive together, and the buffer of the scheduler collects them as a group.

Deviations: written from the published idea. The scheduler of the paper measures α_i during training and moves clients
between several arrival groups. Here α_i is known in advance (from a delay model with a profile, or `alpha`), and there
is one group; clients that are too slow for it arrive late.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.algorithms.base import Algorithm
from offbeat.algorithms.staleness import Polynomial, Staleness
from offbeat.algorithms.workload import Device, Workload
from offbeat.errors import ConfigError
from offbeat.messages import Job, Update
from offbeat.options import Positive, PositiveInt


@dataclass(kw_only=True)
class FedCompass(Algorithm):
    """FedCompass (Li et al., ICLR 2024): slow clients take fewer local steps, so that updates arrive in groups."""

    min_steps: PositiveInt = 5
    """Q_min: minimum number of local steps."""
    max_steps: PositiveInt = 50
    """Q_max: maximum number of local steps."""
    staleness: Staleness = field(default_factory=Polynomial)
    """Staleness function s(τ)."""
    alpha: tuple[Positive, ...] = ()
    """α_i, one per client. If empty, they come from the delay model."""

    schedulers: ClassVar[tuple[str, ...]] = ("continuous", "buffered", "per-arrival")
    state_names: ClassVar[tuple[str, ...]] = ("total",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_steps > self.max_steps:
            raise ConfigError(f"{self.min_steps} is above max_steps = {self.max_steps}", key="min_steps")

    def reset(self) -> None:
        """Start with an empty sum."""
        self.total = self.x.new_zeros(self.x.shape)

    def accumulate(self, job: Job, update: Update) -> None:
        """Add s(τ_i) Δ_i to the sum."""
        self.total.add_(update.delta, alpha=self.staleness(self.tau(job)))

    def pseudo_gradient(self) -> Tensor:
        """Return the sum divided by N."""
        v = self.total / self.clients
        self.reset()
        return v

    def workload(self, device: Device) -> Workload:
        """Return k_i, the number of steps that fit into the time that the fastest client needs for Q_max."""
        fastest = min(device.seconds_per_step(self.alpha, client) for client in range(device.clients))
        steps = int(fastest * self.max_steps / device.seconds_per_step(self.alpha))
        return Workload(max(self.min_steps, min(self.max_steps, steps)))
