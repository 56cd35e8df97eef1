"""DuDe-ASGD: dual-delayed asynchronous SGD.  Wang, Li and others, arXiv 2405.16966.

    g̃_i   memory[i], the latest stochastic gradient of worker i, old in its model and in its data: Δ_i = −η_l·g̃_i of
          a single local step
    v     (1/N) Σ_i g̃_i, kept incrementally: an arrival costs O(d) whatever N is

ACE's direction with single gradients instead of multi-step updates, so the client must do one step (`client.steps =
1`). Written from the published rule; the paper's analysis of its semi-asynchronous form was not at hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.algorithms.base import Algorithm
from offbeat.memory import Dense, Memory
from offbeat.messages import Job, Update
from offbeat.seeds import key


@dataclass(kw_only=True)
class DuDeASGD(Algorithm):
    memory: Memory = field(default_factory=Dense)
    """Where the gradients are kept."""

    single_step: ClassVar[bool] = True
    dispatches: ClassVar[tuple[str, ...]] = ("per-arrival", "keep-busy", "buffered")
    state_names: ClassVar[tuple[str, ...]] = ("memory", "arrivals")

    def reset(self) -> None:
        self.memory.start(self.x, self.clients)
        self.arrivals = 0

    def absorb(self, job: Job, update: Update) -> None:
        self.arrivals += 1
        self.memory.store(update.client, update.delta, key(self.seed, "store", self.arrivals))

    def direction(self) -> Tensor:
        return self.memory.mean
