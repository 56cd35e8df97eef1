"""Codecs that send a fraction of the entries."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from offbeat.compression.base import Codec, to_bytes
from offbeat.options import Interval
from offbeat.random import torch_stream
from offbeat.vectors import Layout

Rate = Annotated[float, Interval(gt=0, le=1)]
_HEADER = struct.Struct("<IB")  # number of values; 0 if indices follow, 1 if a bitmap follows


def entry_count(rate: float, n: int) -> int:
    """Return ⌈rate·n⌉, tolerating rounding errors such as 0.07·100 = 7.000000000000001."""
    return min(n, max(1, math.ceil(rate * n - 1e-9)))


@dataclass(kw_only=True, frozen=True)
class TopK(Codec):
    """Top-k: the fraction `rate` of the entries with the largest absolute values.

    Each value takes four bytes. Its position takes a four-byte index or one bit per entry in a bitmap, whichever is
    shorter in total.
    """

    adjustable: ClassVar[bool] = True

    rate: Rate = 0.1
    """δ: fraction of the entries to send."""
    scope: Literal["tensor", "global"] = "tensor"
    """Whether the largest entries are selected per parameter tensor or from the whole vector."""

    def counts(self, layout: Layout, rate: float | None) -> list[int]:
        """Return the number of entries to send from each tensor, or from the whole vector."""
        sizes = layout.sizes if self.scope == "tensor" else [layout.dim]
        return [entry_count(self.rate if rate is None else rate, n) for n in sizes]

    def size(self, layout: Layout, rate: float | None = None) -> int:
        """Return the bytes of the header, the values and their positions."""
        k = sum(self.counts(layout, rate))
        return _HEADER.size + 4 * k + min(4 * k, math.ceil(layout.dim / 8))

    def chosen(self, x: Tensor, layout: Layout, rate: float | None) -> Tensor:
        """Return the positions of the entries to send, in ascending order."""
        parts, start = [], 0
        counts = self.counts(layout, rate)
        for n, k in zip(layout.sizes if self.scope == "tensor" else [layout.dim], counts, strict=True):
            parts.append(x[start : start + n].abs().topk(k, sorted=False).indices + start)
            start += n
        return torch.cat(parts).sort().values

    def carry(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> Tensor:
        """Return x with all other entries set to zero."""
        index = self.chosen(x, layout, rate)
        return torch.zeros_like(x).index_copy_(0, index, x[index])

    def encode(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> bytes:
        """Return the header, the positions and the values."""
        index = self.chosen(x, layout, rate)
        k, bitmap = len(index), math.ceil(layout.dim / 8) < 4 * len(index)
        if bitmap:
            mask = np.zeros(layout.dim, dtype=bool)
            mask[index.cpu().numpy()] = True
            where = np.packbits(mask).tobytes()
        else:
            where = to_bytes(index.to(torch.int32))
        return _HEADER.pack(k, bitmap) + where + to_bytes(x[index].float())

    def decode(self, payload: bytes, layout: Layout) -> Tensor:
        """Read the positions and the values; raise a `ValueError` if the positions are invalid."""
        k, bitmap = _HEADER.unpack_from(payload)
        length = math.ceil(layout.dim / 8) if bitmap else 4 * k
        where = payload[_HEADER.size : _HEADER.size + length]
        if bitmap:
            index = np.flatnonzero(np.unpackbits(np.frombuffer(where, np.uint8), count=layout.dim))
        else:
            index = np.frombuffer(where, np.int32).astype(np.int64)
        if len(index) != k or (k and (index[0] < 0 or index[-1] >= layout.dim or np.any(np.diff(index) <= 0))):
            raise ValueError(f"the positions of {k} of {layout.dim} entries are invalid")
        values = np.frombuffer(payload, np.float32, k, _HEADER.size + length)
        x = np.zeros(layout.dim, dtype=np.float32)
        x[index] = values
        return torch.from_numpy(x)


@dataclass(kw_only=True, frozen=True)
class RandomK(Codec):
    """Random-k: a random fraction `rate` of the entries, scaled by d/k to be unbiased.

    The payload contains an eight-byte seed, from which the receiver draws the same positions, and the values.
    """

    adjustable: ClassVar[bool] = True

    rate: Rate = 0.1
    """δ: fraction of the entries to send."""
    unbiased: bool = True
    """Whether the values are scaled by d/k. Error feedback requires false, because it corrects the missing entries."""

    def size(self, layout: Layout, rate: float | None = None) -> int:
        """Return the bytes of the seed and the values."""
        return 8 + 4 * self.count(layout, rate)

    def count(self, layout: Layout, rate: float | None) -> int:
        """Return the number k of entries to send."""
        return entry_count(self.rate if rate is None else rate, layout.dim)

    def chosen(self, dim: int, k: int, seed: int) -> Tensor:
        """Return k random positions."""
        return torch.randperm(dim, generator=torch_stream(seed, "codec"))[:k]

    def carry(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> Tensor:
        """Return x scaled at the random positions and zero elsewhere."""
        k = self.count(layout, rate)
        index = self.chosen(layout.dim, k, seed).to(x.device)
        return torch.zeros_like(x).index_copy_(0, index, x[index] * self.scale(layout.dim, k))

    def scale(self, dim: int, k: int) -> float:
        """Return the factor on the values."""
        return dim / k if self.unbiased else 1.0

    def encode(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> bytes:
        """Return the seed and the scaled values."""
        k = self.count(layout, rate)
        index = self.chosen(layout.dim, k, seed).to(x.device)
        return struct.pack("<Q", seed) + to_bytes((x[index] * self.scale(layout.dim, k)).float())

    def decode(self, payload: bytes, layout: Layout) -> Tensor:
        """Read the seed and the values."""
        (seed,) = struct.unpack_from("<Q", payload)
        values = torch.from_numpy(np.frombuffer(payload, np.float32, offset=8).copy())
        return torch.zeros(layout.dim).index_copy_(0, self.chosen(layout.dim, len(values), seed), values)
