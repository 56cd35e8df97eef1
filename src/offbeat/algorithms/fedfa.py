"""FedFa: fully asynchronous with a queue of models.  Xu et al., arXiv 2404.11015.

    q     the last K models that arrived, job.x + update.delta
    v     mean(q) − x, so that with η = 1: x ← mean of the last K received models

Written from the published rule.  What the paper does before K models have arrived could not be verified; here the
mean is over those that have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from offbeat.algorithms.base import Algorithm
from offbeat.messages import Job, Update
from offbeat.options import PositiveInt


@dataclass(kw_only=True)
class FedFa(Algorithm):
    queue: PositiveInt = 10
    """K: models that are averaged."""

    schedulers: ClassVar[tuple[str, ...]] = ("per-arrival", "continuous", "buffered")
    state_names: ClassVar[tuple[str, ...]] = ("q", "total")

    def reset(self) -> None:
        self.q: list[Tensor] = []
        self.total = self.x.new_zeros(self.x.shape)

    def accumulate(self, job: Job, update: Update) -> None:
        model = job.x + update.delta
        self.q.append(model)
        self.total = self.total + model
        if len(self.q) > self.queue:
            self.total = self.total - self.q.pop(0)

    def pseudo_gradient(self) -> Tensor:
        return self.total / len(self.q) - self.x
