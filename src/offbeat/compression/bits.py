"""Numbers of 8, 4 or 2 bits, packed into bytes, and the stochastic uniform quantiser that makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Bits = Literal[8, 4, 2]


@dataclass(frozen=True, slots=True)
class Packed:
    """A quantised vector: codes, 8/bits of them in a byte, between lo and lo + (2^bits − 1)·u."""

    codes: Tensor  # uint8
    lo: float
    u: float


def quantise(x: Tensor, bits: int, noise: Tensor) -> Packed:
    """Unbiased stochastic uniform quantisation, 2^bits levels between the smallest and the largest entry.

    q = lo + u·⌊(x − lo)/u + U⌋ with U ~ [0, 1) given as `noise` and u = (hi − lo)/(2^bits − 1).
    """
    top = 2**bits - 1
    low, high = torch.aminmax(x)
    lo, u = low.item(), (high - low).item() / top
    if u == 0.0:  # a constant vector
        levels = torch.zeros_like(x, dtype=torch.uint8)
    else:
        levels = x.sub(lo).div_(u).add_(noise).floor_().clamp_(0, top).to(torch.uint8)
    return Packed(pack(levels, bits), lo, u)


def dequantise(q: Packed, bits: int, like: Tensor) -> Tensor:
    return unpack(q.codes, bits, like.numel()).to(like.dtype).mul_(q.u).add_(q.lo)


def pack(levels: Tensor, bits: int) -> Tensor:
    """uint8 levels below 2^bits → bytes with 8/bits levels each.

    Byte j holds the levels j, j + m, j + 2m … (m bytes in all), so that only whole contiguous parts are shifted.
    """
    share = 8 // bits
    if share == 1:
        return levels
    parts = torch.nn.functional.pad(levels, (0, -len(levels) % share)).view(share, -1)
    packed = parts[0].clone()
    for place in range(1, share):
        packed |= parts[place] << (bits * place)
    return packed


def unpack(codes: Tensor, bits: int, n: int) -> Tensor:
    """The inverse of `pack`."""
    mask = 2**bits - 1
    return torch.cat([(codes >> shift) & mask for shift in range(0, 8, bits)])[:n]
