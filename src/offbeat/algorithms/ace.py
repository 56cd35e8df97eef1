"""ACE and ACED: every step uses the latest update of all clients. arXiv 2511.19066.

    G_j   cache[j], the latest Δ_j
    τ     max_age, counted in versions since the client pulled the model of its entry
    v     ACE: (1/N) Σ_j G_j;  ACED: the mean of the G_j that are at most τ old

Deviations: written from the abstract and the published rule. How ACED treats a client that has never reported could not
be verified; here the mean excludes it, so that it does not shrink v.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.algorithms.base import ON_ARRIVAL, Algorithm
from offbeat.cache import Dense, UpdateCache
from offbeat.errors import ConfigError
from offbeat.messages import Job, Update
from offbeat.options import NonNegativeInt
from offbeat.random import key


@dataclass(kw_only=True)
class ACE(Algorithm):
    """ACE (arXiv 2511.19066): the mean of the latest updates of all clients, at every arrival."""

    cache: UpdateCache = field(default_factory=Dense)
    """Cache of the G_j."""

    schedulers: ClassVar[tuple[str, ...]] = (*ON_ARRIVAL, "anarchic")
    state_names: ClassVar[tuple[str, ...]] = ("cache", "arrivals")

    def reset(self) -> None:
        """Start with an empty cache."""
        self.cache.start(self.x, self.clients)
        self.arrivals = 0

    def accumulate(self, job: Job, update: Update) -> None:
        """Set G_j ← Δ_j."""
        self.arrivals += 1
        self.cache.store(update.client, update.delta, key(self.seed, "store", self.arrivals))

    def pseudo_gradient(self) -> Tensor:
        """Return the mean of all G_j."""
        return self.cache.mean


@dataclass(kw_only=True)
class ACED(Algorithm):
    """ACED (arXiv 2511.19066): ACE without the entries that are too old."""

    cache: UpdateCache = field(default_factory=Dense)
    """Cache of the G_j."""
    max_age: NonNegativeInt = 50
    """τ: versions after which an entry is dropped."""

    schedulers: ClassVar[tuple[str, ...]] = (*ON_ARRIVAL, "anarchic")
    state_names: ClassVar[tuple[str, ...]] = ("cache", "arrivals", "pulled")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cache.readable:
            raise ConfigError(
                "ACED drops old entries, which the server cannot do in a client-side cache: use another cache",
                key="cache",
            )

    def reset(self) -> None:
        """Start with an empty cache."""
        self.cache.start(self.x, self.clients)
        self.arrivals = 0
        self.pulled: dict[int, int] = {}  # client → version of its entry, in the order of the last stores

    def accumulate(self, job: Job, update: Update) -> None:
        """Set G_j ← Δ_j and record the version that it was computed from."""
        self.arrivals += 1
        self.cache.store(update.client, update.delta, key(self.seed, "store", self.arrivals))
        self.pulled.pop(update.client, None)
        self.pulled[update.client] = job.version

    def pseudo_gradient(self) -> Tensor | None:
        """Drop the entries older than τ and return the mean of the rest, or None if nothing is left."""
        for client in [c for c, version in self.pulled.items() if self.version - version > self.max_age]:
            self.cache.forget(client)
            del self.pulled[client]
        if not self.pulled:
            return None
        return self.cache.mean * (self.clients / len(self.pulled))
