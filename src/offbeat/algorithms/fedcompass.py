"""FedCompass-style step sizing.  Li, He, Xu, Chard, Madduri and others, *FedCompass: Efficient Cross-Silo Federated
Learning on Heterogeneous Client Devices using a Computing Power-Aware Scheduler*, ICLR 2024.

    α_i   seconds a local step takes client i
    k_i   local steps of client i: those that fit into the time in which the fastest client does Q_max, at least Q_min
    s     staleness weight
    v     (1/N) Σ_i s(τ_i) Δ_i over the arrivals since the last step

Clients of unlike speed then arrive together, and the scheduler's buffer takes them as a group.  Written from the
published idea.  What could not be verified, and is not here: the paper's scheduler measures α_i while it runs and
moves clients between several arrival groups; here α_i is known (delay laws with a profile, or `alpha`) and there is
one group, with those that are too slow for it arriving late.
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
    min_steps: PositiveInt = 5
    """Q_min."""
    max_steps: PositiveInt = 50
    """Q_max."""
    staleness: Staleness = field(default_factory=Polynomial)
    """s(τ)."""
    alpha: tuple[Positive, ...] = ()
    """α_i, one a client; empty: what the delay law says."""

    schedulers: ClassVar[tuple[str, ...]] = ("continuous", "buffered", "per-arrival")
    state_names: ClassVar[tuple[str, ...]] = ("total",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_steps > self.max_steps:
            raise ConfigError(f"{self.min_steps} is above max_steps = {self.max_steps}", key="min_steps")

    def reset(self) -> None:
        self.total = self.x.new_zeros(self.x.shape)

    def accumulate(self, job: Job, update: Update) -> None:
        self.total.add_(update.delta, alpha=self.staleness(self.tau(job)))

    def pseudo_gradient(self) -> Tensor:
        v = self.total / self.clients
        self.reset()
        return v

    def workload(self, device: Device) -> Workload:
        """Choose k_i: the steps that fit into the time in which the fastest client does Q_max."""
        fastest = min(device.seconds_per_step(self.alpha, client) for client in range(device.clients))
        steps = int(fastest * self.max_steps / device.seconds_per_step(self.alpha))
        return Workload(max(self.min_steps, min(self.max_steps, steps)))
