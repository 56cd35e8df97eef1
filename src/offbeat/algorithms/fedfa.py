"""FedFa: fully asynchronous training with a queue of models. Xu et al., arXiv 2404.11015.

    q     the last K models that arrived, job.x + update.delta
    v     mean(q) − x, so that with η = 1: x ← mean of the last K received models

Deviations: written from the published rule. What the paper does before K models have arrived could not be verified;
here x is the mean of the models received so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from offbeat.algorithms.base import ON_ARRIVAL, Algorithm
from offbeat.messages import Job, Update
from offbeat.options import PositiveInt


@dataclass(kw_only=True)
class FedFa(Algorithm):
    """FedFa (Xu et al., arXiv 2404.11015): the mean of the last K received models."""

    queue: PositiveInt = 10
    """K: number of models in the mean."""

    schedulers: ClassVar[tuple[str, ...]] = ON_ARRIVAL
    state_names: ClassVar[tuple[str, ...]] = ("q", "total")

    def reset(self) -> None:
        """Start with an empty queue."""
        self.q: list[Tensor] = []
        self.total = self.x.new_zeros(self.x.shape)

    def accumulate(self, job: Job, update: Update) -> None:
        """Append the received model to the queue and drop the oldest if there are more than K."""
        model = job.x + update.delta
        self.q.append(model)
        self.total = self.total + model
        if len(self.q) > self.queue:
            self.total = self.total - self.q.pop(0)

    def pseudo_gradient(self) -> Tensor:
        """Return mean(q) − x."""
        return self.total / len(self.q) - self.x
