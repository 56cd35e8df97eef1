"""AREA: asynchronous exact averaging.  Iakovidou and Kim, arXiv 2405.10123.

    x_i    the model that client i last uploaded, x_0 before its first
    m_i    cache[i] = x_i − x_0
    v      (1/N) Σ over the arrivals of (x_i new − x_i old): with η = 1, x stays the mean of all x_i

In the paper the client keeps its last upload and sends the residual: that is `cache = "client-side"`.  Written from the
published rule; whether the paper's server steps at every arrival or in batches is left to the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.algorithms.base import Algorithm
from offbeat.cache import Dense, UpdateCache
from offbeat.messages import Job, Update
from offbeat.random import key


@dataclass(kw_only=True)
class AREA(Algorithm):
    cache: UpdateCache = field(default_factory=Dense)
    """Where the models are kept."""

    schedulers: ClassVar[tuple[str, ...]] = ("per-arrival", "continuous", "buffered", "rounds", "available")
    state_names: ClassVar[tuple[str, ...]] = ("cache", "x_0", "before", "arrivals")

    def reset(self) -> None:
        self.cache.start(self.x, self.clients)
        self.x_0 = self.x
        self.before = self.cache.mean  # of the memory at the last step
        self.arrivals = 0

    def accumulate(self, job: Job, update: Update) -> None:
        self.arrivals += 1
        model = job.x + update.delta
        self.cache.store(update.client, model - self.x_0, key(self.seed, "store", self.arrivals))

    def pseudo_gradient(self) -> Tensor:
        v = self.cache.mean - self.before
        self.before = self.cache.mean
        return v
