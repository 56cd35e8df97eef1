"""Codecs that send some of the entries."""

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
_HEADER = struct.Struct("<IB")  # number of values; 0: indices follow, 1: a bitmap follows


def share(rate: float, n: int) -> int:
    """⌈rate·n⌉, without the one too many that a product such as 0.07·100 = 7.000000000000001 would give."""
    return min(n, max(1, math.ceil(rate * n - 1e-9)))


@dataclass(kw_only=True, frozen=True)
class TopK(Codec):
    """The share `rate` of the entries that is largest in absolute value.

    Each value costs four bytes; where they stand is told by four-byte indices or by a bitmap, whichever is shorter.
    """

    adjustable: ClassVar[bool] = True

    rate: Rate = 0.1
    """δ: share of the entries that travel."""
    scope: Literal["tensor", "global"] = "tensor"
    """The largest of every parameter tensor, or of the whole vector."""

    def counts(self, layout: Layout, rate: float | None) -> list[int]:
        sizes = layout.sizes if self.scope == "tensor" else [layout.dim]
        return [share(self.rate if rate is None else rate, n) for n in sizes]

    def size(self, layout: Layout, rate: float | None = None) -> int:
        k = sum(self.counts(layout, rate))
        return _HEADER.size + 4 * k + min(4 * k, math.ceil(layout.dim / 8))

    def chosen(self, x: Tensor, layout: Layout, rate: float | None) -> Tensor:
        """Positions of the entries that travel, in rising order."""
        parts, start = [], 0
        counts = self.counts(layout, rate)
        for n, k in zip(layout.sizes if self.scope == "tensor" else [layout.dim], counts, strict=True):
            parts.append(x[start : start + n].abs().topk(k, sorted=False).indices + start)
            start += n
        return torch.cat(parts).sort().values

    def carry(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> Tensor:
        index = self.chosen(x, layout, rate)
        return torch.zeros_like(x).index_copy_(0, index, x[index])

    def encode(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> bytes:
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
        k, bitmap = _HEADER.unpack_from(payload)
        length = math.ceil(layout.dim / 8) if bitmap else 4 * k
        where = payload[_HEADER.size : _HEADER.size + length]
        if bitmap:
            index = np.flatnonzero(np.unpackbits(np.frombuffer(where, np.uint8), count=layout.dim))
        else:
            index = np.frombuffer(where, np.int32).astype(np.int64)
        if len(index) != k or (k and (index[0] < 0 or index[-1] >= layout.dim or np.any(np.diff(index) <= 0))):
            raise ValueError(f"the positions of {k} of {layout.dim} entries make no sense")
        values = np.frombuffer(payload, np.float32, k, _HEADER.size + length)
        x = np.zeros(layout.dim, dtype=np.float32)
        x[index] = values
        return torch.from_numpy(x)


@dataclass(kw_only=True, frozen=True)
class RandomK(Codec):
    """A random share `rate` of the entries, scaled by d/k so that the mean is right.

    The receiver draws the same positions from a seed of eight bytes, so only the values travel.
    """

    adjustable: ClassVar[bool] = True

    rate: Rate = 0.1
    """δ: share of the entries that travel."""
    unbiased: bool = True
    """Scale by d/k.  With error feedback this must be off: the feedback makes up for what is missing."""

    def size(self, layout: Layout, rate: float | None = None) -> int:
        return 8 + 4 * self.count(layout, rate)

    def count(self, layout: Layout, rate: float | None) -> int:
        return share(self.rate if rate is None else rate, layout.dim)

    def chosen(self, dim: int, k: int, seed: int) -> Tensor:
        return torch.randperm(dim, generator=torch_stream(seed, "codec"))[:k]

    def carry(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> Tensor:
        k = self.count(layout, rate)
        index = self.chosen(layout.dim, k, seed).to(x.device)
        return torch.zeros_like(x).index_copy_(0, index, x[index] * self.scale(layout.dim, k))

    def scale(self, dim: int, k: int) -> float:
        return dim / k if self.unbiased else 1.0

    def encode(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> bytes:
        k = self.count(layout, rate)
        index = self.chosen(layout.dim, k, seed).to(x.device)
        return struct.pack("<Q", seed) + to_bytes((x[index] * self.scale(layout.dim, k)).float())

    def decode(self, payload: bytes, layout: Layout) -> Tensor:
        (seed,) = struct.unpack_from("<Q", payload)
        values = torch.from_numpy(np.frombuffer(payload, np.float32, offset=8).copy())
        return torch.zeros(layout.dim).index_copy_(0, self.chosen(layout.dim, len(values), seed), values)
