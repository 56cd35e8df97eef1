"""Robust aggregators, which bound the influence of a few arbitrary updates.

    M           updates per step
    u_1 … u_M   the updates, already scaled by their staleness
    f           the number of updates that may be malicious

Median and trimmed mean: Yin, Chen, Ramchandran and Bartlett, *Byzantine-Robust Distributed Learning*, ICML 2018,
Definitions 1 and 2, where βM is an integer; here it is rounded up. Krum and multi-Krum: Blanchard, El Mhamdi, Guerraoui
and Stainer, *Machine Learning with Adversaries*, NeurIPS 2017, section 4.

All of them keep references to the updates of a step and work block by block.
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
class _Stored(Aggregator):
    """Base class of the aggregators that need all updates of a step at once."""

    state_names: ClassVar[tuple[str, ...]] = ("values", "scales")

    def start(self, like: Tensor, seed: int = 0, updates: int | None = None) -> None:
        """Start with an empty buffer."""
        self.values: Rows = []
        self.scales: list[float] = []

    def add(self, client: int, value: Tensor, scale: float = 1.0, weight: float = 1.0) -> None:
        """Store a reference to the update and its scale."""
        self.values.append(value)
        self.scales.append(scale)

    def aggregate(self) -> Tensor:
        """Return the combination of the stored updates and discard them."""
        v = self.combine()
        self.values, self.scales = [], []
        return v

    @abstractmethod
    def combine(self) -> Tensor:
        """Return the combination of the stored updates."""

    def parts(self) -> Iterator[Rows]:
        """Yield the blocks of u_1 … u_M, one block of each at a time."""
        for rows in zip(*map(blocks, self.values), strict=True):
            yield [row if scale == 1.0 else row * scale for row, scale in zip(rows, self.scales, strict=True)]

    def blockwise(self, combined: Callable[[Rows], Tensor]) -> Tensor:
        """Return the vector whose blocks are a function of the corresponding blocks of the u_i."""
        v = empty_hugepages_like(self.values[0])
        for block, rows in zip(blocks(v), self.parts(), strict=True):
            block.copy_(combined(rows))
        return v


@dataclass(kw_only=True)
class Median(_Stored):
    """The coordinate-wise median; for an even number of updates, the mean of the middle two."""

    def check(self, updates: int | None) -> None:
        """Raise a `ConfigError` for fewer than three updates per step."""
        _require(3, updates, "a median")

    def combine(self) -> Tensor:
        """Return the coordinate-wise median."""
        return self.blockwise(lambda rows: trimmed_mean(rows, len(rows)))


@dataclass(kw_only=True)
class TrimmedMean(_Stored):
    """The coordinate-wise mean without the largest and the smallest values."""

    trim: Share | NonNegativeInt = 0.2
    """β: fraction of the updates to drop at each end, rounded up. An integer is a number of updates."""

    def check(self, updates: int | None) -> None:
        """Raise a `ConfigError` if nothing is left after trimming."""
        _require(2 * _count(self.trim, updates) + 1, updates, f"trim = {self.trim:g} at each end")

    def combine(self) -> Tensor:
        """Return the coordinate-wise trimmed mean."""
        return self.blockwise(lambda rows: trimmed_mean(rows, _count(self.trim, len(rows))))


@dataclass(kw_only=True)
class Krum(_Stored):
    """Krum: the update closest to its M − f − 2 nearest neighbors. Multi-Krum: the mean of the m best updates."""

    attackers: Share | NonNegativeInt = 0.2
    """f: updates per step that may be malicious, as a fraction, rounded up, or as an integer."""
    select: PositiveInt = 1
    """m: number of updates to select."""

    def check(self, updates: int | None) -> None:
        """Raise a `ConfigError` for fewer than 2f + 3 or fewer than m updates per step."""
        f = _count(self.attackers, updates)
        _require(2 * f + 3, updates, f"Krum against {f}", why="2f + 3")
        _require(self.select, updates, f"select = {self.select}")

    def combine(self) -> Tensor:
        """Return the mean of the m updates with the lowest scores."""
        chosen = self.scores().argsort(stable=True)[: self.select]
        return self.blockwise(lambda rows: torch.stack(rows).index_select(0, chosen).mean(dim=0))

    def scores(self) -> Tensor:
        """Return Σ ‖u_i − u_j‖² over the nearest neighbors j of each i.

        ‖u_i − u_j‖² = ‖u_i‖² + ‖u_j‖² − 2⟨u_i, u_j⟩ is computed in double precision, because the difference may be
        small compared with its terms.
        """
        m = len(self.values)
        gram = torch.zeros((m, m), dtype=torch.float64, device=self.values[0].device)
        for rows in self.parts():
            u = torch.stack(rows).double()
            gram += u @ u.T
        gram = (gram + gram.T) / 2  # exactly symmetric, so that mutual nearest neighbors tie
        squares = gram.diagonal()
        distances = (squares[:, None] + squares[None, :] - 2 * gram).clamp(min=0).nan_to_num(nan=math.inf)
        nearest = max(1, m - _count(self.attackers, m) - 2)
        return distances.sort(dim=1).values[:, 1 : 1 + nearest].sum(dim=1)  # the nearest is i itself


@dataclass(kw_only=True)
class Clipped(_Stored):
    """The mean of the updates after clipping their norms to a bound."""

    bound: Positive | None = None
    """Maximum norm of an update. The default is the median norm of the updates of the step."""

    def check(self, updates: int | None) -> None:
        """Raise a `ConfigError` if the bound is a median of fewer than three norms."""
        if self.bound is None:
            _require(3, updates, "a median of norms")

    def combine(self) -> Tensor:
        """Return the mean of the clipped updates."""
        norms = torch.stack([norm(value) for value in self.values]) * self._scales().abs()
        bound = self.bound if self.bound is not None else trimmed_mean(list(norms), len(norms))
        shrink = self._scales() * (bound / norms).clamp(max=1.0).nan_to_num(nan=1.0)  # 0/0: a zero update stays zero
        total = torch.zeros_like(self.values[0])
        for value, factor in zip(self.values, shrink.to(total.dtype), strict=True):
            total.addcmul_(value, factor)
        return total.div_(len(self.values))

    def _scales(self) -> Tensor:
        return torch.tensor(self.scales, dtype=torch.float64, device=self.values[0].device)


def norm(value: Tensor) -> Tensor:
    """Return ‖value‖ as a tensor, so that a GPU is not synchronized.

    The norm is accumulated by blocks, because a long sum in single precision is inaccurate.
    """
    total: Tensor = torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(block) for block in blocks(value)]).double()
    )
    return total


def trimmed_mean(rows: Rows, trim: int) -> Tensor:
    """Return the coordinate-wise mean without `trim` values at each end.

    At least one or two values remain, so that a large `trim` gives the median.
    """
    trim = min(trim, (len(rows) - 1) // 2)
    middle = sort_rows(rows)[trim : len(rows) - trim] if trim else rows
    return torch.stack(middle).mean(dim=0)


def sort_rows(rows: Sequence[Tensor]) -> Rows:
    """Sort the values of every coordinate in ascending order.

    A sorting network on whole rows takes a tenth of the time of `torch.sort` over a short dimension, and needs no
    memory for indices.
    """
    ordered = list(rows)
    for low, high in comparators(len(ordered)):
        one, other = ordered[low], ordered[high]
        ordered[low], ordered[high] = torch.minimum(one, other), torch.maximum(one, other)
    return ordered


@functools.cache
def comparators(count: int) -> list[tuple[int, int]]:
    """Return the comparators of a sorting network for `count` values.

    Batcher's merge exchange: Knuth, *The Art of Computer Programming*, 5.2.2, Algorithm M.
    """
    pairs = []
    top = 1 << max(count - 1, 0).bit_length() >> 1
    p = top
    while p:
        q, r, d = top, 0, p
        while True:
            pairs += [(i, i + d) for i in range(count - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q >> 1, p
        p >>= 1
    return pairs


def _count(given: float | int, updates: int | None) -> int:
    """Convert a fraction of the updates to a number, rounded up. An integer is a number already."""
    return given if isinstance(given, int) else math.ceil(given * (updates or 0) - 1e-9)


def _require(needed: int, updates: int | None, what: str, why: str = "") -> None:
    """Raise a `ConfigError` if a step has fewer updates than needed."""
    if updates is not None and updates < needed:
        reason = why and f" ({why})"
        raise ConfigError(
            f"{what} needs at least {needed} updates per step{reason}, but the scheduler steps with {updates}: "
            "increase its buffer or concurrency"
        )
