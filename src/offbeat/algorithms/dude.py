"""DuDe-ASGD: dual-delayed asynchronous SGD.  Wang, Li and others, arXiv 2405.16966.

    g̃_i   cache[i], the latest stochastic gradient of worker i, old in its model and in its data: Δ_i = −η_l·g̃_i of
          a single local step
    v     (1/N) Σ_i g̃_i, kept incrementally: an arrival costs O(d) whatever N is

ACE's direction with single gradients instead of multi-step updates, so the client must do one step (`client.steps =
1`). Written from the published rule; the paper's analysis of its semi-asynchronous form was not at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from offbeat.algorithms.ace import ACE


@dataclass(kw_only=True)
class DuDeASGD(ACE):
    """ACE with the stochastic gradient of a single local step."""

    single_step: ClassVar[bool] = True
    schedulers: ClassVar[tuple[str, ...]] = ("per-arrival", "continuous", "buffered")
