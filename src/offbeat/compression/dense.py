"""Codecs that send every entry, with full or reduced precision."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from offbeat.compression.base import Codec, noise, to_bytes
from offbeat.compression.bits import Bits, Packed, dequantize, pack, quantize, unpack
from offbeat.vectors import Layout


@dataclass(kw_only=True, frozen=True)
class Raw(Codec):
    """No compression: 32-bit floats."""

    lossless: ClassVar[bool] = True

    def size(self, layout: Layout, rate: float | None = None) -> int:
        """Return four bytes per entry."""
        return 4 * layout.dim

    def carry(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> Tensor:
        """Return x itself."""
        return x

    def encode(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> bytes:
        """Return the entries as 32-bit floats."""
        return to_bytes(x.float())

    def decode(self, payload: bytes, layout: Layout) -> Tensor:
        """Read 32-bit floats."""
        return torch.from_numpy(np.frombuffer(payload, np.float32).copy())


@dataclass(kw_only=True, frozen=True)
class Uniform(Codec):
    """Unbiased stochastic quantization to 2^bits levels between the smallest and the largest entry."""

    bits: Bits = 8
    """Bits per entry."""

    def size(self, layout: Layout, rate: float | None = None) -> int:
        """Return the bytes of the range and the packed codes."""
        return 16 + math.ceil(layout.dim * self.bits / 8)

    def carry(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> Tensor:
        """Return the quantized values."""
        return dequantize(quantize(x, self.bits, noise(x, seed)), self.bits, x)

    def encode(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> bytes:
        """Return lo, u and the packed codes."""
        packed = quantize(x, self.bits, noise(x, seed))
        return struct.pack("<dd", packed.lo.item(), packed.u.item()) + to_bytes(packed.codes)

    def decode(self, payload: bytes, layout: Layout) -> Tensor:
        """Read lo, u and the packed codes."""
        lo, u = struct.unpack_from("<dd", payload)
        codes = torch.from_numpy(np.frombuffer(payload, np.uint8, offset=16).copy())
        return dequantize(Packed(codes, torch.tensor(lo), torch.tensor(u)), self.bits, torch.empty(layout.dim))


@dataclass(kw_only=True, frozen=True)
class QSGD(Codec):
    """QSGD (Alistarh et al., NeurIPS 2017): ‖x‖·sign(x)·ξ with an unbiased ξ ∈ {0, 1/s, …, 1}.

    An entry takes `bits` bits for its sign and one of s = 2^(bits−1) − 1 levels. The paper uses a variable-length code.
    """

    bits: Bits = 8
    """Bits per entry, including its sign."""

    @property
    def levels(self) -> int:
        """Number of levels s."""
        return int(2 ** (self.bits - 1) - 1)

    def size(self, layout: Layout, rate: float | None = None) -> int:
        """Return the bytes of the norm and the packed levels."""
        return 8 + math.ceil(layout.dim * self.bits / 8)

    def signed(self, x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Return ‖x‖ and the signed levels, −s … s."""
        norm = x.double().norm()  # in single precision the squares could overflow
        ratio = x.abs() / norm.clamp_min(torch.finfo(x.dtype).tiny)
        return norm, (ratio * self.levels + noise(x, seed)).floor_().clamp_max_(self.levels).mul_(x.sign())

    def carry(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> Tensor:
        """Return the values of the signed levels."""
        norm, signed = self.signed(x, seed)
        return signed * (norm / self.levels)

    def encode(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> bytes:
        """Return the norm and the packed levels."""
        norm, signed = self.signed(x, seed)
        return struct.pack("<d", norm.item()) + to_bytes(pack((signed + self.levels).to(torch.uint8), self.bits))

    def decode(self, payload: bytes, layout: Layout) -> Tensor:
        """Read the norm and the packed levels."""
        (norm,) = struct.unpack_from("<d", payload)
        codes = torch.from_numpy(np.frombuffer(payload, np.uint8, offset=8).copy())
        return unpack(codes, self.bits, layout.dim).float().sub_(self.levels).mul_(norm / self.levels)


@dataclass(kw_only=True, frozen=True)
class Sign(Codec):
    """Signs with the mean magnitude: (‖x‖₁/d)·sign(x), where zero counts as positive (Bernstein et al., ICML 2018)."""

    def size(self, layout: Layout, rate: float | None = None) -> int:
        """Return the bytes of the magnitude and one bit per entry."""
        return 8 + math.ceil(layout.dim / 8)

    def carry(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> Tensor:
        """Return the signs times the mean magnitude."""
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype) * x.abs().mean()

    def encode(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> bytes:
        """Return the mean magnitude and the packed signs."""
        return struct.pack("<d", x.abs().mean().item()) + np.packbits((x >= 0).cpu().numpy()).tobytes()

    def decode(self, payload: bytes, layout: Layout) -> Tensor:
        """Read the mean magnitude and the packed signs."""
        (scale,) = struct.unpack_from("<d", payload)
        bits = np.unpackbits(np.frombuffer(payload, np.uint8, offset=8), count=layout.dim)
        return torch.from_numpy(bits.astype(np.float32) * 2 - 1).mul_(scale)
