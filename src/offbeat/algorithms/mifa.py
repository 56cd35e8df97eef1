"""MIFA.  Gu, Huang, Zhang and Huang, *Fast Federated Learning in the Presence of Arbitrary Device Unavailability*,
NeurIPS 2021, Algorithm 1.

    A(t)   the devices that are awake in round t; they train from x_t with the local rate η_t
    G^i    cache[i], the latest update of device i: here Δ_i/r, the update at the full local rate
    r_t    1/t with schedule = "inverse" (the paper's η_t = η_0/t), 1 with "constant"; t counts effective steps
    v      r_t · (1/N) Σ_i G^i over *all* N devices

The theory needs every device once before the first step: with `wait_for_all` x stays until then, and the waiting rounds
count as versions.  Without, the absent count as zero.  The paper's memory-light form, in which a device keeps its
own G^i and sends G_new − G_old, is `cache = "client-side"` and gives the identical trajectory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor

from offbeat.algorithms.base import Algorithm
from offbeat.cache import Dense, UpdateCache
from offbeat.messages import Job, Update
from offbeat.random import key


@dataclass(kw_only=True)
class MIFA(Algorithm):
    cache: UpdateCache = field(default_factory=Dense)
    """Where the G^i are kept."""
    wait_for_all: bool = True
    """Make the first step only when every device was heard once."""
    schedule: Literal["constant", "inverse"] = "constant"
    """Local and server rate: as given, or divided by the number of effective steps."""

    schedulers: ClassVar[tuple[str, ...]] = (
        "available",
        "rounds",
        "buffered",
        "continuous",
        "per-arrival",
        "periodic",
        "anarchic",
    )
    state_names: ClassVar[tuple[str, ...]] = ("cache", "t", "arrivals")

    def reset(self) -> None:
        self.cache.start(self.x, self.clients)
        self.t = 1
        self.arrivals = 0

    def local_rate(self) -> float:
        return 1.0 / self.t if self.schedule == "inverse" else 1.0

    def accumulate(self, job: Job, update: Update) -> None:
        self.arrivals += 1
        g = update.delta if job.rate == 1 else update.delta / job.rate
        self.cache.store(update.client, g, key(self.seed, "store", self.arrivals))

    def pseudo_gradient(self) -> Tensor | None:
        if self.wait_for_all and len(self.cache) < self.clients:
            return None
        v = self.cache.mean * self.local_rate()
        self.t += 1
        return v
