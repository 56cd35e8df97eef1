"""Cache entries in memory, packed into 8-, 4- or 2-bit numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from offbeat.cache.base import Change, UpdateCache
from offbeat.compression.bits import (
    PIECE,
    Bits,
    Packed,
    code_pieces,
    decoded,
    dequantize,
    empty_codes,
    pack_piece,
    pieces,
    range_pieces,
    rounded,
    span,
    spread,
    unpack_piece,
)
from offbeat.errors import ConfigError
from offbeat.options import Interval
from offbeat.random import torch_stream
from offbeat.vectors import Layout

Levels = Annotated[int, Interval(ge=2, le=256)] | None
Rounding = Literal["stochastic", "nearest"]
Range = Literal["vector", "tensor"]


@dataclass(kw_only=True)
class Quantized(UpdateCache):
    """Quantized entries h_i ← Q(Δ_i), packed into bits/8·d bytes each. The mean is that of the *stored* entries.

    Q has equidistant levels between the smallest and the largest number of a range. A range for each tensor takes 8
    more bytes per tensor and client, and 4·d bytes once.
    """

    bits: Bits = 4
    """Bits per number in memory."""
    levels: Levels = None
    """Number of levels, at most 2^bits, which is the default."""
    rounding: Rounding = "stochastic"
    """Rounding to one of the two adjacent levels: at random and unbiased, or to the nearest, and up from the middle."""
    range: Range = "vector"
    """Whether the levels lie between the ends of the whole vector, or of each tensor of the model."""

    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.levels is not None and self.levels > 2**self.bits:
            raise ConfigError(
                f"{self.levels} levels do not fit into {self.bits} bits: use at most {2**self.bits}, or more bits",
                key="levels",
            )
        self._sizes: tuple[int, ...] = ()

    def use_layout(self, layout: Layout) -> None:
        """Learn the sizes of the model's tensors."""
        self._sizes = tuple(size for size in layout.sizes if size)

    def start(self, like: Tensor, clients: int) -> None:
        """Discard all entries and prepare for a new run."""
        super().start(like, clients)
        self._top = (self.levels or 2**self.bits) - 1  # the largest code
        self._ranges: Tensor | None = None  # the number of each entry's tensor
        if self.range == "tensor":
            if sum(self._sizes) != like.numel():
                raise ConfigError(
                    f"'tensor' needs the sizes of the tensors of a model with {like.numel()} parameters: pass its "
                    "layout to use_layout before start",
                    key="range",
                )
            numbers = torch.arange(len(self._sizes), dtype=torch.int32)
            self._ranges = numbers.repeat_interleave(torch.tensor(self._sizes)).to(like.device)

    def __getitem__(self, client: int) -> Tensor:
        row = self.rows.get(client)
        if row is None:
            return torch.zeros_like(self.like)
        return dequantize(Packed(*row), self.bits, self.like, self._ranges)

    def blocks(self, v: Tensor) -> Sequence[Tensor]:
        """Split a vector into the pieces in which it is packed."""
        return pieces(v)

    def _exchange(self, client: int, value: Tensor, key: int | None) -> Iterator[Change]:
        old = self._decoded(client)
        if key is None:
            yield from ((change, change) for change in map(torch.sub, pieces(value), old))
            return
        lo, u = span(value, self._top, self._split)
        codes = empty_codes(value, self.bits)
        generator = torch_stream(key, device=value.device)
        for part, code, own in zip(
            pieces(value), code_pieces(codes, self.bits), range_pieces(self._ranges, value), strict=True
        ):
            part_lo, part_u = spread(lo, own), spread(u, own)
            level = rounded(part, self._top, part_lo, part_u, self._noise(part.shape, [generator]))
            pack_piece(level, self.bits, code)
            before = next(old)
            yield part - before, level.mul_(part_u).add_(part_lo).sub_(before)
        self.rows[client] = (codes, lo, u)

    def _exchanges(self, fresh: Sequence[tuple[int, Tensor, int]]) -> list[Iterator[Change]]:
        """Store short vectors in batches, because launching some thirty operations for each would dominate the cost."""
        size = min(len(fresh), PIECE // 4 // self.like.numel())  # a batch fits into the CPU cache
        if size < 2:
            return super()._exchanges(fresh)
        return [self._exchange_batch(fresh[first : first + size]) for first in range(0, len(fresh), size)]

    def _exchange_batch(self, fresh: Sequence[tuple[int, Tensor, int]]) -> Iterator[Change]:
        """Exchange several entries as the rows of a matrix. Existing entries are overwritten in place."""
        rows = [self.rows.get(client) or self._zero_row() for client, _, _ in fresh]
        x = torch.stack([value for _, value, _ in fresh])
        noise = self._noise(x.shape, [torch_stream(key, device=x.device) for _, _, key in fresh])
        lo, u = span(x, self._top, self._split)
        wide_lo, wide_u = spread(lo, self._ranges), spread(u, self._ranges)
        level = rounded(x, self._top, wide_lo, wide_u, noise)
        old, old_lo, old_u = (torch.stack(part) for part in zip(*rows, strict=True))
        before = unpack_piece(old, self.bits, x)
        before.mul_(spread(old_u.view_as(u), self._ranges)).add_(spread(old_lo.view_as(lo), self._ranges))
        pack_piece(level, self.bits, old)
        yield x.sub_(before).sum(dim=0), level.mul_(wide_u).add_(wide_lo).sub_(before).sum(dim=0)
        for written, new in zip(zip(*rows, strict=True), (old, lo.view_as(old_lo), u.view_as(old_u)), strict=True):
            torch._foreach_copy_(written, new.unbind())
        self.rows.update((client, row) for (client, _, _), row in zip(fresh, rows, strict=True))

    def _noise(self, shape: torch.Size, generators: Sequence[torch.Generator]) -> Tensor | float:
        """Return what is added to an entry before it is rounded down: a random share of a step, or half a step.

        Args:
            shape: The shape of the entries.
            generators: The generator of all entries, or one per row.
        """
        if self.rounding == "nearest":
            return 0.5
        noise = torch.empty(shape, device=self.like.device)
        for row, generator in zip([noise] if len(generators) == 1 else noise, generators, strict=True):
            row.uniform_(generator=generator)
        return noise

    @property
    def _split(self) -> Sequence[int]:
        """Lengths of the parts of a vector that have a range each; empty if the vector has one range."""
        return self._sizes if self.range == "tensor" else ()

    def _zero_row(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return a packed entry of zeros."""
        shape = (len(self._sizes),) if self.range == "tensor" else ()
        ends = self.like.new_zeros(2, *shape)
        return torch.zeros_like(empty_codes(self.like, self.bits)), ends[0], ends[1]

    def _decoded(self, client: int) -> Iterator[Tensor]:
        """Yield h_i piece by piece, or zeros if there is no entry."""
        row = self.rows.get(client)
        if row is None:
            yield from repeat(self.like.new_zeros(()))
        else:
            yield from decoded(Packed(*row), self.bits, self.like, self._ranges)

    @property
    def nbytes(self) -> int:
        """Bytes of memory of all packed entries."""
        return sum(codes.nbytes + lo.nbytes + u.nbytes for codes, lo, u in self.rows.values())
