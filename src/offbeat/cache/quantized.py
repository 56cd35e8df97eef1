"""Cache entries in memory, packed into 8-, 4- or 2-bit numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import ClassVar

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
    levels,
    pack_piece,
    pieces,
    span,
    unpack_piece,
)
from offbeat.random import torch_stream


@dataclass(kw_only=True)
class Quantized(UpdateCache):
    """Quantized entries h_i ← Q(Δ_i), packed into bits/8·d bytes each. The mean is that of the *stored* entries."""

    bits: Bits = 4
    """Bits per number."""

    exact: ClassVar[bool] = False

    def __getitem__(self, client: int) -> Tensor:
        row = self.rows.get(client)
        return torch.zeros_like(self.like) if row is None else dequantize(Packed(*row), self.bits, self.like)

    def blocks(self, v: Tensor) -> Sequence[Tensor]:
        """Split a vector into the pieces in which it is packed."""
        return pieces(v)

    def _exchange(self, client: int, value: Tensor, key: int | None) -> Iterator[Change]:
        old = self._decoded(client)
        if key is None:
            yield from ((change, change) for change in map(torch.sub, pieces(value), old))
            return
        lo, u = span(value, self.bits)
        codes = empty_codes(value, self.bits)
        generator = torch_stream(key, device=value.device)
        for part, code in zip(pieces(value), code_pieces(codes, self.bits), strict=True):
            level = levels(part, self.bits, lo, u, torch.rand(part.shape, generator=generator, device=part.device))
            pack_piece(level, self.bits, code)
            before = next(old)
            yield part - before, level.mul_(u).add_(lo).sub_(before)
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
        noise = torch.empty(x.shape, device=x.device)
        for row, (_, _, key) in zip(noise, fresh, strict=True):
            row.uniform_(generator=torch_stream(key, device=x.device))
        lo, u = span(x, self.bits)
        level = levels(x, self.bits, lo, u, noise)
        old, old_lo, old_u = (torch.stack(part) for part in zip(*rows, strict=True))
        before = unpack_piece(old, self.bits, x).mul_(old_u.unsqueeze(-1)).add_(old_lo.unsqueeze(-1))
        pack_piece(level, self.bits, old)
        yield x.sub_(before).sum(dim=0), level.mul_(u).add_(lo).sub_(before).sum(dim=0)
        for written, new in zip(zip(*rows, strict=True), (old, lo.flatten(), u.flatten()), strict=True):
            torch._foreach_copy_(written, new.unbind())
        self.rows.update((client, row) for (client, _, _), row in zip(fresh, rows, strict=True))

    def _zero_row(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return a packed entry of zeros."""
        ends = self.like.new_zeros(2)
        return torch.zeros_like(empty_codes(self.like, self.bits)), ends[0], ends[1]

    def _decoded(self, client: int) -> Iterator[Tensor]:
        """Yield h_i piece by piece, or zeros if there is no entry."""
        row = self.rows.get(client)
        if row is None:
            yield from repeat(self.like.new_zeros(()))
        else:
            yield from decoded(Packed(*row), self.bits, self.like)

    @property
    def nbytes(self) -> int:
        """Bytes of memory of all packed entries."""
        return sum(codes.nbytes + lo.nbytes + u.nbytes for codes, lo, u in self.rows.values())
