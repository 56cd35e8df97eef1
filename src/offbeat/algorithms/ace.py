"""ACE and ACED: all clients' latest updates, at every arrival.  arXiv 2511.19066.

    G_j   cache[j], the latest Δ_j
    v     ACE: (1/N) Σ_j G_j      ACED: the mean over the clients whose entry is at most τ old

An entry's age is counted in versions from the model that its client had pulled.  Written from the published abstract
and rule: how ACED treats a client that was never heard (here: it is not among the clients averaged, so nothing is
divided by its absence) could not be verified.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.algorithms.base import Algorithm
from offbeat.cache import Dense, UpdateCache
from offbeat.errors import ConfigError
from offbeat.messages import Job, Update
from offbeat.options import NonNegativeInt
from offbeat.random import key


@dataclass(kw_only=True)
class ACE(Algorithm):
    cache: UpdateCache = field(default_factory=Dense)
    """Where the G_j are kept."""

    schedulers: ClassVar[tuple[str, ...]] = ("per-arrival", "continuous", "buffered", "anarchic")
    state_names: ClassVar[tuple[str, ...]] = ("cache", "arrivals")

    def reset(self) -> None:
        self.cache.start(self.x, self.clients)
        self.arrivals = 0

    def accumulate(self, job: Job, update: Update) -> None:
        self.arrivals += 1
        self.cache.store(update.client, update.delta, key(self.seed, "store", self.arrivals))

    def pseudo_gradient(self) -> Tensor:
        return self.cache.mean


@dataclass(kw_only=True)
class ACED(Algorithm):
    cache: UpdateCache = field(default_factory=Dense)
    """Where the G_j are kept."""
    max_age: NonNegativeInt = 50
    """τ: versions after which an entry is left out."""

    schedulers: ClassVar[tuple[str, ...]] = ("per-arrival", "continuous", "buffered", "anarchic")
    state_names: ClassVar[tuple[str, ...]] = ("cache", "arrivals", "pulled")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cache.readable:
            raise ConfigError("ACED drops old entries, which a memory held by the clients cannot do", key="cache")

    def reset(self) -> None:
        self.cache.start(self.x, self.clients)
        self.arrivals = 0
        self.pulled: dict[int, int] = {}  # client → version of its entry, oldest store first

    def accumulate(self, job: Job, update: Update) -> None:
        self.arrivals += 1
        self.cache.store(update.client, update.delta, key(self.seed, "store", self.arrivals))
        self.pulled.pop(update.client, None)
        self.pulled[update.client] = job.version

    def pseudo_gradient(self) -> Tensor | None:
        for client in [c for c, version in self.pulled.items() if self.version - version > self.max_age]:
            self.cache.forget(client)
            del self.pulled[client]
        if not self.pulled:
            return None
        return self.cache.mean * (self.clients / len(self.pulled))
