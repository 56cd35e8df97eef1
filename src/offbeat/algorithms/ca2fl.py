"""CA²FL: cached update calibration.

Wang, Cao, Wu, Chen and Chen, *Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update
Calibration*, Workshop on Federated Learning and Analytics in Practice at ICML 2023 (FL-ICML 2023), Algorithm 1. All
numbers of algorithms, equations and tables are those of this version; a later one appeared at ICLR 2024.

    Δ_i   update.delta, computed from the model of τ_i versions ago
    h_i   cache[i], the latest Δ_i that the server has used, zero before the first
    h     cache.mean = (1/N) Σ_i h_i
    S_t   the updates since the last step; M of them under the scheduler of the paper
    v     h + (1/|S_t|) Σ_{i∈S_t} (Δ_i − h_i)

Under the scheduler `continuous` a fast client can be in S_t twice. Both updates count, and the cache keeps the later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.algorithms.base import ALL_BUFFERED_FIRST, Algorithm
from offbeat.cache import Dense, UpdateCache
from offbeat.messages import Job, Update
from offbeat.random import key


class CachedCalibration(Algorithm):
    """CA²FL with any cache.

    This class is not a dataclass, so that each variant decides whether `cache` is an option.
    """

    cache: UpdateCache

    schedulers: ClassVar[tuple[str, ...]] = ALL_BUFFERED_FIRST
    state_names: ClassVar[tuple[str, ...]] = ("cache", "fresh")

    def reset(self) -> None:
        """Start with an empty cache and an empty buffer."""
        self.cache.start(self.x, self.clients)
        self.fresh: list[tuple[int, Tensor]] = []  # S_t

    def accumulate(self, job: Job, update: Update) -> None:
        """Add Δ_i to S_t."""
        self.fresh.append((update.client, update.delta))

    def pseudo_gradient(self) -> Tensor:
        """Return h plus the mean of Δ_i − h_i over S_t (line 9), and set h_i ← Δ_i for S_t (line 11)."""
        # One pass computes h and Σ (Δ_i − h_i) and then stores the Δ_i.
        h, differences = self.cache.replace(self.fresh, lambda place: key(self.seed, "store", self.version, place))
        self.fresh = []
        return h.add_(differences, alpha=1 / self.received)


@dataclass(kw_only=True)
class CA2FL(CachedCalibration):
    """CA²FL (Wang et al., FL-ICML 2023): buffered aggregation, calibrated by the latest update of every client."""

    cache: UpdateCache = field(default_factory=Dense)
    """Cache of the h_i."""
