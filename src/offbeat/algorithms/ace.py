"""ACE and ACED: all clients' latest updates, at every arrival.  arXiv 2511.19066.

    G_j   memory[j], the latest Δ_j
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
from offbeat.errors import ConfigError
from offbeat.memory import Dense, Memory
from offbeat.messages import Job, Update
from offbeat.options import Natural
from offbeat.seeds import key


@dataclass(kw_only=True)
class ACE(Algorithm):
    memory: Memory = field(default_factory=Dense)
    """Where the G_j are kept."""

    dispatches: ClassVar[tuple[str, ...]] = ("per-arrival", "keep-busy", "buffered", "anarchic")
    state_names: ClassVar[tuple[str, ...]] = ("memory", "arrivals")

    def reset(self) -> None:
        self.memory.start(self.x, self.clients)
        self.arrivals = 0

    def absorb(self, job: Job, update: Update) -> None:
        self.arrivals += 1
        self.memory.store(update.client, update.delta, key(self.seed, "store", self.arrivals))

    def direction(self) -> Tensor:
        return self.memory.mean


@dataclass(kw_only=True)
class ACED(Algorithm):
    memory: Memory = field(default_factory=Dense)
    """Where the G_j are kept."""
    max_age: Natural = 50
    """τ: versions after which an entry is left out."""

    dispatches: ClassVar[tuple[str, ...]] = ("per-arrival", "keep-busy", "buffered", "anarchic")
    state_names: ClassVar[tuple[str, ...]] = ("memory", "arrivals", "pulled")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.memory.readable:
            raise ConfigError("ACED drops old entries, which a memory held by the clients cannot do", key="memory")

    def reset(self) -> None:
        self.memory.start(self.x, self.clients)
        self.arrivals = 0
        self.pulled: dict[int, int] = {}  # client → version of its entry, oldest store first

    def absorb(self, job: Job, update: Update) -> None:
        self.arrivals += 1
        self.memory.store(update.client, update.delta, key(self.seed, "store", self.arrivals))
        self.pulled.pop(update.client, None)
        self.pulled[update.client] = job.version

    def direction(self) -> Tensor | None:
        for client in [c for c, version in self.pulled.items() if self.version - version > self.max_age]:
            self.memory.forget(client)
            del self.pulled[client]
        if not self.pulled:
            return None
        return self.memory.mean * (self.clients / len(self.pulled))
