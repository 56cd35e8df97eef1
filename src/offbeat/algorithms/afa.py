"""AFA-CD and AFA-CS.  Yang, Zhang, Khanduri and Liu, *Anarchic Federated Learning*, ICML 2022, Algorithms 2 and 3.

    m     updates that the server collects for a step, from workers that join when they like
    K_i   local steps that worker i chose: update.steps
    G_i   the worker's return: Δ_i, or Δ_i·K/K_i with normalise = "steps"
    v     AFA-CD: (1/m) Σ_{i∈M_t} G_i        AFA-CS: (1/M) Σ_i G_i over all workers' latest returns

The boxes divide by K_i and step by η, the proof (appendix B) steps by η·η_L; with a reference K both are `"steps"`
up to the choice of η.  The paper's tables come out with the undivided Δ_i, so `"none"` is the default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor

from offbeat.aggregation import Aggregator, Mean
from offbeat.algorithms.base import Algorithm
from offbeat.cache import Dense, UpdateCache
from offbeat.messages import Job, Update
from offbeat.options import Positive
from offbeat.random import key

Normalise = Literal["none", "steps"]


def returned(update: Update, normalise: Normalise, reference: float) -> Tensor:
    """G_i."""
    return update.delta if normalise == "none" else update.delta * (reference / update.steps)


@dataclass(kw_only=True)
class AFACD(Algorithm):
    """For many devices: the server remembers nothing."""

    normalise: Normalise = "none"
    """What a worker returns: Δ_i as it is, or Δ_i·K/K_i."""
    reference_steps: Positive = 5.0
    """K, with normalise = "steps"."""
    aggregator: Aggregator = field(default_factory=Mean)
    """How the updates of a step become v."""

    schedulers: ClassVar[tuple[str, ...]] = (
        "anarchic",
        "continuous",
        "buffered",
        "per-arrival",
        "rounds",
        "available",
        "periodic",
    )
    state_names: ClassVar[tuple[str, ...]] = ("aggregator",)

    def reset(self) -> None:
        self.aggregator.start(self.x, self.seed, self.updates)

    def accumulate(self, job: Job, update: Update) -> None:
        self.aggregator.add(update.client, returned(update, self.normalise, self.reference_steps))

    def pseudo_gradient(self) -> Tensor:
        return self.aggregator.aggregate()


@dataclass(kw_only=True)
class AFACS(Algorithm):
    """For few silos: the server remembers each worker's latest return."""

    normalise: Normalise = "none"
    """What a worker returns: Δ_i as it is, or Δ_i·K/K_i."""
    reference_steps: Positive = 5.0
    """K, with normalise = "steps"."""
    cache: UpdateCache = field(default_factory=Dense)
    """Where the G_i are kept."""

    schedulers: ClassVar[tuple[str, ...]] = (
        "anarchic",
        "continuous",
        "buffered",
        "per-arrival",
        "rounds",
        "available",
        "periodic",
    )
    state_names: ClassVar[tuple[str, ...]] = ("cache", "arrivals")

    def reset(self) -> None:
        self.cache.start(self.x, self.clients)
        self.arrivals = 0

    def accumulate(self, job: Job, update: Update) -> None:
        self.arrivals += 1
        g = returned(update, self.normalise, self.reference_steps)
        self.cache.store(update.client, g, key(self.seed, "store", self.arrivals))

    def pseudo_gradient(self) -> Tensor:
        return self.cache.mean
