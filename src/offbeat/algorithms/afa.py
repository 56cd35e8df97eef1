"""AFA-CD and AFA-CS: anarchic federated averaging.

Yang, Zhang, Khanduri and Liu, *Anarchic Federated Learning*, ICML 2022, Algorithms 2 and 3.

    m     the number of updates that the server collects for a step, from workers that join at will
    K_i   the number of local steps that worker i chose: update.steps
    G_i   the return of worker i: Δ_i, or Δ_i·K/K_i with normalize = "steps"
    v     AFA-CD: (1/m) Σ_{i∈M_t} G_i;  AFA-CS: (1/M) Σ_i G_i over the latest returns of all M workers

Deviations: the algorithm boxes divide by K_i and step by η, and the proof (appendix B) steps by η·η_L. With a reference
K both are `"steps"`, up to the choice of η. The paper's tables are reproduced with the undivided Δ_i, so the default is
`"none"`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor

from offbeat.aggregation import Aggregator, Mean
from offbeat.algorithms.base import ALL_ANARCHIC_FIRST, Algorithm
from offbeat.cache import Dense, UpdateCache
from offbeat.messages import Job, Update
from offbeat.options import Positive
from offbeat.random import key


@dataclass(kw_only=True)
class _AFA(Algorithm):
    """Options that AFA-CD and AFA-CS share."""

    normalize: Literal["none", "steps"] = "none"
    """Return of a worker: Δ_i unchanged, or normalized to Δ_i·K/K_i."""
    reference_steps: Positive = 5.0
    """K, with normalize = "steps"."""

    schedulers: ClassVar[tuple[str, ...]] = ALL_ANARCHIC_FIRST

    def worker_return(self, update: Update) -> Tensor:
        """Return G_i."""
        return update.delta if self.normalize == "none" else update.delta * (self.reference_steps / update.steps)


@dataclass(kw_only=True)
class AFACD(_AFA):
    """AFA-CD (Yang et al., ICML 2022): anarchic averaging across many devices, without a cache."""

    aggregator: Aggregator = field(default_factory=Mean)
    """Aggregator of the updates of a step."""

    state_names: ClassVar[tuple[str, ...]] = ("aggregator",)

    def reset(self) -> None:
        """Start with an empty buffer."""
        self.aggregator.start(self.x, self.seed, self.updates)

    def accumulate(self, job: Job, update: Update) -> None:
        """Add G_i to the buffer."""
        self.aggregator.add(update.client, self.worker_return(update))

    def pseudo_gradient(self) -> Tensor:
        """Return the mean of the buffered G_i."""
        return self.aggregator.aggregate()


@dataclass(kw_only=True)
class AFACS(_AFA):
    """AFA-CS (Yang et al., ICML 2022): anarchic averaging across few silos, with the latest return of each worker."""

    cache: UpdateCache = field(default_factory=Dense)
    """Cache of the G_i."""

    state_names: ClassVar[tuple[str, ...]] = ("cache", "arrivals")

    def reset(self) -> None:
        """Start with an empty cache."""
        self.cache.start(self.x, self.clients)
        self.arrivals = 0

    def accumulate(self, job: Job, update: Update) -> None:
        """Store G_i as the latest return of worker i."""
        self.arrivals += 1
        self.cache.store(update.client, self.worker_return(update), key(self.seed, "store", self.arrivals))

    def pseudo_gradient(self) -> Tensor:
        """Return the mean of the latest G_i of all workers."""
        return self.cache.mean
