"""FedAsync. Xie, Koyejo and Gupta, *Asynchronous Federated Optimization*, arXiv 1903.03934, Algorithm 1.

    x_new   job.x + update.delta: the client's *model*, trained from the version that it pulled
    α       mixing weight; α_t = α·s(t − τ)
    s       staleness function
    v       α_t (x_new − x), so that with η = 1: x ← (1 − α_t) x + α_t x_new

The clients of the paper minimize F_i + (ρ/2)‖x − x_pulled‖²: use the client rule `prox` with mu = ρ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from offbeat.algorithms.base import Algorithm
from offbeat.algorithms.staleness import Constant, Staleness
from offbeat.messages import Job, Update
from offbeat.options import Interval


@dataclass(kw_only=True)
class FedAsync(Algorithm):
    """FedAsync (Xie et al., arXiv 1903.03934): mix every arriving model into x, weighted by its staleness."""

    alpha: Annotated[float, Interval(gt=0, le=1)] = 0.6
    """Mixing weight α."""
    staleness: Staleness = field(default_factory=Constant)
    """Staleness function s(τ)."""

    schedulers: ClassVar[tuple[str, ...]] = ("per-arrival",)
    state_names: ClassVar[tuple[str, ...]] = ("v",)

    def reset(self) -> None:
        """Allocate v."""
        self.v = self.x.new_zeros(self.x.shape)

    def accumulate(self, job: Job, update: Update) -> None:
        """Compute v from the arriving model, in place."""
        x_new = torch.add(job.x, update.delta, out=self.v)
        x_new.sub_(self.x).mul_(self.alpha * self.staleness(self.tau(job)))

    def pseudo_gradient(self) -> Tensor:
        """Return v."""
        return self.v
