"""Codecs that send every entry, in fewer bits."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offbeat.compression.base import Codec, noise, to_bytes
from offbeat.compression.bits import Bits, Packed, dequantise, pack, quantise, unpack
from offbeat.vectors import Layout


@dataclass(kw_only=True, frozen=True)
class Raw(Codec):
    """Everything, as 32-bit floats."""

    def size(self, layout: Layout, rate: float | None = None) -> int:
        return 4 * layout.dim

    def carry(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> Tensor:
        return x

    def encode(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> bytes:
        return to_bytes(x.float())

    def decode(self, payload: bytes, layout: Layout) -> Tensor:
        return torch.from_numpy(np.frombuffer(payload, np.float32).copy())


@dataclass(kw_only=True, frozen=True)
class Uniform(Codec):
    """Unbiased stochastic quantisation with 2^bits levels between the smallest and the largest entry."""

    bits: Bits = 8
    """Bits an entry."""

    def size(self, layout: Layout, rate: float | None = None) -> int:
        return 16 + math.ceil(layout.dim * self.bits / 8)

    def carry(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> Tensor:
        return dequantise(quantise(x, self.bits, noise(x, seed)), self.bits, x)

    def encode(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> bytes:
        packed = quantise(x, self.bits, noise(x, seed))
        return struct.pack("<dd", packed.lo.item(), packed.u.item()) + to_bytes(packed.codes)

    def decode(self, payload: bytes, layout: Layout) -> Tensor:
        lo, u = struct.unpack_from("<dd", payload)
        codes = torch.from_numpy(np.frombuffer(payload, np.uint8, offset=16).copy())
        return dequantise(Packed(codes, torch.tensor(lo), torch.tensor(u)), self.bits, torch.empty(layout.dim))


@dataclass(kw_only=True, frozen=True)
class QSGD(Codec):
    """‖x‖·sign(x)·ξ with ξ ∈ {0, 1/s, …, 1} unbiased.  Alistarh et al., NeurIPS 2017, with fixed-width numbers.

    A sign and a level of s = 2^(bits−1) − 1 in `bits` bits an entry, where the paper uses a variable-length code.
    """

    bits: Bits = 8
    """Bits an entry, its sign included."""

    @property
    def levels(self) -> int:
        return int(2 ** (self.bits - 1) - 1)

    def size(self, layout: Layout, rate: float | None = None) -> int:
        return 8 + math.ceil(layout.dim * self.bits / 8)

    def signed(self, x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """‖x‖ and the signed levels, −s … s."""
        norm = x.double().norm()  # in single precision the squares of ordinary numbers overflow
        share = x.abs() / norm.clamp_min(torch.finfo(x.dtype).tiny)
        return norm, (share * self.levels + noise(x, seed)).floor_().clamp_max_(self.levels).mul_(x.sign())

    def carry(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> Tensor:
        norm, signed = self.signed(x, seed)
        return signed * (norm / self.levels)

    def encode(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> bytes:
        norm, signed = self.signed(x, seed)
        return struct.pack("<d", norm.item()) + to_bytes(pack((signed + self.levels).to(torch.uint8), self.bits))

    def decode(self, payload: bytes, layout: Layout) -> Tensor:
        (norm,) = struct.unpack_from("<d", payload)
        codes = torch.from_numpy(np.frombuffer(payload, np.uint8, offset=8).copy())
        return unpack(codes, self.bits, layout.dim).float().sub_(self.levels).mul_(norm / self.levels)


@dataclass(kw_only=True, frozen=True)
class Sign(Codec):
    """One bit an entry and their mean size: (‖x‖₁/d)·sign(x), zero counting as positive.  Bernstein et al., ICML
    2018."""

    def size(self, layout: Layout, rate: float | None = None) -> int:
        return 8 + math.ceil(layout.dim / 8)

    def carry(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> Tensor:
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype) * x.abs().mean()

    def encode(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> bytes:
        return struct.pack("<d", x.abs().mean().item()) + np.packbits((x >= 0).cpu().numpy()).tobytes()

    def decode(self, payload: bytes, layout: Layout) -> Tensor:
        (scale,) = struct.unpack_from("<d", payload)
        bits = np.unpackbits(np.frombuffer(payload, np.uint8, offset=8), count=layout.dim)
        return torch.from_numpy(bits.astype(np.float32) * 2 - 1).mul_(scale)
