"""MIFA: memory-augmented impatient federated averaging.

Gu, Huang, Zhang and Huang, *Fast Federated Learning in the Presence of Arbitrary Device Unavailability*, NeurIPS 2021,
Algorithm 1.

    A(t)   the devices that are available in round t; they train from x_t with the local rate η_t
    G^i    cache[i], the latest update of device i, rescaled to the full local rate: Δ_i/r
    r_t    the factor of `client.schedule`; the paper's η_t = η_0/t is schedule = "inverse"
    v      r_t · (1/N) Σ_i G^i over *all* N devices

The theory requires every device to report once before the first step. With `wait_for_all`, x does not move until then,
and the rounds of waiting count as versions. Without it, absent devices count as zero. In the paper's memory-efficient
form each device stores its own G^i and sends G_new − G_old: `cache = "client-side"`, with an identical trajectory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.algorithms.base import ALL_AVAILABLE_FIRST, Algorithm
from offbeat.cache import Dense, UpdateCache
from offbeat.messages import Job, Update
from offbeat.random import key


@dataclass(kw_only=True)
class MIFA(Algorithm):
    """MIFA (Gu et al., NeurIPS 2021): FedAvg in which the latest update of an absent device stands in for it."""

    cache: UpdateCache = field(default_factory=Dense)
    """Cache of the G^i."""
    wait_for_all: bool = True
    """Whether the first step waits until every device has reported once."""

    schedulers: ClassVar[tuple[str, ...]] = ALL_AVAILABLE_FIRST
    state_names: ClassVar[tuple[str, ...]] = ("cache", "arrivals")

    def reset(self) -> None:
        """Start with an empty cache."""
        self.cache.start(self.x, self.clients)
        self.arrivals = 0

    def accumulate(self, job: Job, update: Update) -> None:
        """Set G^i ← Δ_i/r."""
        self.arrivals += 1
        g = update.delta if job.rate == 1 else update.delta / job.rate
        self.cache.store(update.client, g, key(self.seed, "store", self.arrivals))

    def pseudo_gradient(self) -> Tensor | None:
        """Return r_t times the mean of all G^i, or None while a device has not reported yet."""
        if self.wait_for_all and len(self.cache) < self.clients:
            return None
        return self.cache.mean * self.local_rate()
