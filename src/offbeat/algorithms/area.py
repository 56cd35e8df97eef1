"""AREA: asynchronous exact averaging. Iakovidou and Kim, arXiv 2405.10123.

    x_i    the model that client i uploaded last, x_0 before its first upload
    m_i    cache[i] = x_i − x_0
    v      (1/N) Σ (new x_i − old x_i) over the arrivals; with η = 1, x remains the mean of all x_i

In the paper each client stores its last upload and sends the residual: `cache = "client-side"`.

Deviations: written from the published rule. The scheduler decides whether the server steps at every arrival or after
several.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.algorithms.base import ON_ARRIVAL, SYNCHRONOUS, Algorithm
from offbeat.cache import Dense, UpdateCache
from offbeat.messages import Job, Update
from offbeat.random import key


@dataclass(kw_only=True)
class AREA(Algorithm):
    """AREA (Iakovidou and Kim, arXiv 2405.10123): the mean of the latest models of all clients."""

    cache: UpdateCache = field(default_factory=Dense)
    """Cache of the models."""

    schedulers: ClassVar[tuple[str, ...]] = (*ON_ARRIVAL, *SYNCHRONOUS)
    state_names: ClassVar[tuple[str, ...]] = ("cache", "x_0", "before", "arrivals")

    def reset(self) -> None:
        """Start with x_i = x_0 for every client."""
        self.cache.start(self.x, self.clients)
        self.x_0 = self.x
        self.before = self.cache.mean  # the mean of the m_i at the last step
        self.arrivals = 0

    def accumulate(self, job: Job, update: Update) -> None:
        """Set x_i to the client's new model."""
        self.arrivals += 1
        model = job.x + update.delta
        self.cache.store(update.client, model - self.x_0, key(self.seed, "store", self.arrivals))

    def pseudo_gradient(self) -> Tensor:
        """Return how the mean of all x_i has changed since the last step."""
        v = self.cache.mean - self.before
        self.before = self.cache.mean
        return v
