"""Combinations that a few wrong updates cannot move far, whatever they are.

    M     updates of a step;  u_1 … u_M, each already scaled by its staleness
    f     how many of them may be hostile

Median and trimmed mean: Yin, Chen, Ramchandran and Bartlett, *Byzantine-Robust Distributed Learning*, ICML 2018,
Definitions 1 and 2, where βM is whole; here it is rounded up.  Krum and multi-Krum: Blanchard, El Mhamdi, Guerraoui
and Stainer, *Machine Learning with Adversaries*, NeurIPS 2017, section 4.

All of them keep the updates of a step, by reference, until it is made, and work block by block.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from offbeat.aggregation.base import Aggregator
from offbeat.errors import ConfigError
from offbeat.options import Interval, NonNegativeInt, Positive, PositiveInt
from offbeat.vectors import blocks, empty_hugepages_like

Share = Annotated[float, Interval(ge=0, lt=0.5)]
Rows = list[Tensor]


@dataclass(kw_only=True)
class _Together(Aggregator):
    state_names: ClassVar[tuple[str, ...]] = ("values", "scales")

    def start(self, like: Tensor, seed: int = 0, updates: int | None = None) -> None:
        self.values: Rows = []
        self.scales: list[float] = []

    def add(self, client: int, value: Tensor, scale: float = 1.0, weight: float = 1.0) -> None:
        self.values.append(value)
        self.scales.append(scale)

    def aggregate(self) -> Tensor:
        v = self.together()
        self.values, self.scales = [], []
        return v

    @abstractmethod
    def together(self) -> Tensor: ...

    def parts(self) -> Iterator[Rows]:
        """u_1 … u_M, a block of each at a time."""
        for rows in zip(*map(blocks, self.values), strict=True):
            yield [row if scale == 1.0 else row * scale for row, scale in zip(rows, self.scales, strict=True)]

    def blockwise(self, combined: Callable[[Rows], Tensor]) -> Tensor:
        """The vector whose every block is made of those of the u_i."""
        v = empty_hugepages_like(self.values[0])
        for block, rows in zip(blocks(v), self.parts(), strict=True):
            block.copy_(combined(rows))
        return v


@dataclass(kw_only=True)
class Median(_Together):
    """The median of every coordinate; of an even number of updates, the mean of the middle two."""

    def check(self, updates: int | None) -> None:
        _at_least(3, updates, "a median")

    def together(self) -> Tensor:
        return self.blockwise(lambda rows: trimmed(rows, len(rows)))


@dataclass(kw_only=True)
class TrimmedMean(_Together):
    """The mean of every coordinate without its largest and its smallest values."""

    trim: Share | NonNegativeInt = 0.2
    """β: the share of a step's updates, rounded up, that is left out at either end; a whole number is how many."""

    def check(self, updates: int | None) -> None:
        _at_least(2 * _number(self.trim, updates) + 1, updates, f"trim = {self.trim:g} at either end")

    def together(self) -> Tensor:
        return self.blockwise(lambda rows: trimmed(rows, _number(self.trim, len(rows))))


@dataclass(kw_only=True)
class Krum(_Together):
    """Krum: the update whose M − f − 2 nearest others are nearest to it; multi-Krum: the mean of the best m."""

    attackers: Share | NonNegativeInt = 0.2
    """f: how many of a step's updates may be hostile, as a share, rounded up, or as a whole number."""
    select: PositiveInt = 1
    """m: how many are chosen."""

    def check(self, updates: int | None) -> None:
        f = _number(self.attackers, updates)
        _at_least(2 * f + 3, updates, f"Krum against {f}", why="2f + 3")
        _at_least(self.select, updates, f"select = {self.select}")

    def together(self) -> Tensor:
        chosen = self.scores().argsort(stable=True)[: self.select]
        return self.blockwise(lambda rows: torch.stack(rows).index_select(0, chosen).mean(dim=0))

    def scores(self) -> Tensor:
        """Σ ‖u_i − u_j‖² over the nearest others of each i; ‖u_i − u_j‖² = ‖u_i‖² + ‖u_j‖² − 2⟨u_i, u_j⟩.

        In double precision, because that difference may be small beside its terms.
        """
        m = len(self.values)
        gram = torch.zeros((m, m), dtype=torch.float64, device=self.values[0].device)
        for rows in self.parts():
            u = torch.stack(rows).double()
            gram += u @ u.T
        gram = (gram + gram.T) / 2  # rounded alike on both sides: two that are each other's nearest tie
        squares = gram.diagonal()
        distances = (squares[:, None] + squares[None, :] - 2 * gram).clamp(min=0).nan_to_num(nan=math.inf)
        nearest = max(1, m - _number(self.attackers, m) - 2)
        return distances.sort(dim=1).values[:, 1 : 1 + nearest].sum(dim=1)  # the first is i itself


@dataclass(kw_only=True)
class Clipped(_Together):
    """The mean of the updates, none of them longer than a bound."""

    bound: Positive | None = None
    """Largest ‖u_i‖; left out, the median of the step's ‖u_i‖."""

    def check(self, updates: int | None) -> None:
        if self.bound is None:
            _at_least(3, updates, "a median of norms")

    def together(self) -> Tensor:
        norms = torch.stack([length(value) for value in self.values]) * self._scales().abs()
        bound = self.bound if self.bound is not None else trimmed(list(norms), len(norms))
        shrink = self._scales() * (bound / norms).clamp(max=1.0).nan_to_num(nan=1.0)  # 0/0: nothing to shrink
        total = torch.zeros_like(self.values[0])
        for value, factor in zip(self.values, shrink.to(total.dtype), strict=True):
            total.addcmul_(value, factor)
        return total.div_(len(self.values))

    def _scales(self) -> Tensor:
        return torch.tensor(self.scales, dtype=torch.float64, device=self.values[0].device)


def length(value: Tensor) -> Tensor:
    """‖value‖ as a tensor: on a GPU nobody waits for it.  By blocks, since a long sum in single precision is coarse."""
    found: Tensor = torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(block) for block in blocks(value)]).double()
    )
    return found


def trimmed(rows: Rows, trim: int) -> Tensor:
    """The mean of every coordinate without `trim` values at either end, or as many as leave one or two."""
    trim = min(trim, (len(rows) - 1) // 2)
    middle = ordered(rows)[trim : len(rows) - trim] if trim else rows
    return torch.stack(middle).mean(dim=0)


def ordered(rows: Sequence[Tensor]) -> Rows:
    """The values of every coordinate in rising order.

    By a sorting network: a minimum and a maximum of whole rows at a time takes a tenth of the time of `torch.sort`
    over a short dimension, and no room for indices.
    """
    found = list(rows)
    for low, high in comparators(len(found)):
        one, other = found[low], found[high]
        found[low], found[high] = torch.minimum(one, other), torch.maximum(one, other)
    return found


@functools.cache
def comparators(count: int) -> list[tuple[int, int]]:
    """Batcher's merge exchange (Knuth, *The Art of Computer Programming*, 5.2.2, Algorithm M) for so many values."""
    found = []
    top = 1 << max(count - 1, 0).bit_length() >> 1
    p = top
    while p:
        q, r, d = top, 0, p
        while True:
            found += [(i, i + d) for i in range(count - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q >> 1, p
        p >>= 1
    return found


def _number(given: float | int, updates: int | None) -> int:
    """How many a number or a share of them is."""
    return given if isinstance(given, int) else math.ceil(given * (updates or 0) - 1e-9)


def _at_least(needed: int, updates: int | None, what: str, why: str = "") -> None:
    if updates is not None and updates < needed:
        words = f"{what} needs at least {needed} updates a step{why and f' ({why})'}, the scheduler makes one with "
        raise ConfigError(words + str(updates))
