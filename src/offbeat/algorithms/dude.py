"""DuDe-ASGD: dual-delayed asynchronous SGD. Wang, Li and others, arXiv 2405.16966.

    g̃_i   cache[i], the latest stochastic gradient of worker i, delayed in its model and in its data;
          Δ_i = −η_l·g̃_i after a single local step
    v     (1/N) Σ_i g̃_i, maintained incrementally: an arrival costs O(d) for any N

This is ACE with single gradients instead of multi-step updates, so it requires `client.steps = 1`.

Deviations: written from the published rule; the paper's analysis of its semi-asynchronous form was not available.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from offbeat.algorithms.ace import ACE
from offbeat.algorithms.base import ON_ARRIVAL


@dataclass(kw_only=True)
class DuDeASGD(ACE):
    """DuDe-ASGD (arXiv 2405.16966): ACE with the stochastic gradient of a single local step."""

    single_step: ClassVar[bool] = True
    schedulers: ClassVar[tuple[str, ...]] = ON_ARRIVAL
