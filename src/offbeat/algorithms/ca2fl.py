"""CA²FL.  Wang, Cao, Wu, Chen and Chen, *Tackling the Data Heterogeneity in Asynchronous Federated Learning with
Cached Update Calibration*, ICLR 2024, Algorithm 1.

    Δ_i   update.delta, from the model of τ_i versions ago
    h_i   cache[i], the latest Δ_i that the server has used, zero before the first
    h     cache.mean = (1/N) Σ_i h_i
    S_t   the updates since the last step; M of them under the paper's scheduler
    v     h + (1/|S_t|) Σ_{i∈S_t} (Δ_i − h_i)

Under the scheduler `continuous` a fast client can be in S_t twice: both updates count, the memory keeps the later.
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
class CA2FL(Algorithm):
    cache: UpdateCache = field(default_factory=Dense)
    """Where the h_i are kept."""

    schedulers: ClassVar[tuple[str, ...]] = (
        "buffered",
        "continuous",
        "per-arrival",
        "rounds",
        "available",
        "periodic",
        "anarchic",
    )
    state_names: ClassVar[tuple[str, ...]] = ("cache", "fresh")

    def reset(self) -> None:
        self.cache.start(self.x, self.clients)
        self.fresh: list[tuple[int, Tensor]] = []  # S_t

    def accumulate(self, job: Job, update: Update) -> None:
        self.fresh.append((update.client, update.delta))

    def pseudo_gradient(self) -> Tensor:
        # h and Σ (Δ_i − h_i) over S_t, then line 11: h_i ← Δ_i for S_t, all in one pass.
        h, differences = self.cache.replace(self.fresh, lambda place: key(self.seed, "store", self.version, place))
        self.fresh = []
        return h.add_(differences, alpha=1 / self.received)  # line 9
