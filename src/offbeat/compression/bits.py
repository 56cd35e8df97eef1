"""Numbers of 8, 4 or 2 bits, packed into bytes, and the stochastic uniform quantiser that makes them.

Everything is done piece by piece: on a CPU a piece of a long vector and what is computed from it stay in the cache, and
elsewhere all whole pieces are one batch.  Nothing here waits for a device: the ends of a range stay tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Bits = Literal[8, 4, 2]

PIECE = 1 << 17
"""Entries that are packed together.  Part of the format: packed vectors travel and are saved."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A quantized vector: codes, 8/bits of them in a byte, between lo and lo + (2^bits − 1)·u."""

    codes: Tensor  # uint8
    lo: Tensor  # both of no dimension, in the precision of the vector
    u: Tensor


def pieces(x: Tensor, size: int = PIECE) -> Sequence[Tensor]:
    """Views whose last dimension is one piece: one after the other on a CPU, else all whole ones and the rest."""
    if x.numel() <= size:
        return (x,)
    if one_by_one(x):
        return torch.split(x, size)
    whole = x.numel() // size * size
    return [part for part in (x[:whole].view(-1, size), x[whole:]) if part.numel()]


def one_by_one(x: Tensor) -> bool:
    """Whether pieces are better done one after the other: where there is a cache to stay in."""
    return x.device.type == "cpu"


def code_pieces(codes: Tensor, bits: int) -> Sequence[Tensor]:
    """Where the codes of each of a vector's pieces lie."""
    return pieces(codes, PIECE * bits // 8)


def span(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """lo and u = (hi − lo)/(2^bits − 1), of a vector or of each row."""
    low, high = torch.aminmax(x) if x.ndim == 1 else (x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True))
    return low, high.sub_(low).div_(2**bits - 1)


def levels(x: Tensor, bits: int, lo: Tensor, u: Tensor, noise: Tensor) -> Tensor:
    """⌊(x − lo)/u + noise⌋, whole numbers in x's type; 0 where u is 0, in a constant vector."""
    step = u.clamp_min(torch.finfo(u.dtype).tiny)
    return (x - lo).div_(step).add_(noise).floor_().clamp_max_(2**bits - 1)


def quantise(x: Tensor, bits: int, noise: Tensor) -> Packed:
    """Unbiased stochastic uniform quantisation, 2^bits levels between the smallest and the largest entry.

    q = lo + u·⌊(x − lo)/u + U⌋ with U ~ [0, 1) given as `noise` and u = (hi − lo)/(2^bits − 1).
    """
    lo, u = span(x, bits)
    codes = empty_codes(x, bits)
    for part, luck, code in zip(pieces(x), pieces(noise), code_pieces(codes, bits), strict=True):
        pack_piece(levels(part, bits, lo, u, luck), bits, code)
    return Packed(codes, lo, u)


def dequantise(q: Packed, bits: int, like: Tensor) -> Tensor:
    out = torch.empty_like(like)
    for part, values in zip(pieces(out), decoded(q, bits, like), strict=True):
        part.copy_(values)
    return out


def decoded(q: Packed, bits: int, like: Tensor) -> Iterator[Tensor]:
    """The same, piece by piece."""
    for code, part in zip(code_pieces(q.codes, bits), pieces(like), strict=True):
        yield unpack_piece(code, bits, part).mul_(q.u).add_(q.lo)


def empty_codes(x: Tensor, bits: int) -> Tensor:
    """Room for the codes of x."""
    return torch.empty(-(-x.numel() * bits // 8), dtype=torch.uint8, device=x.device)


def pack(whole: Tensor, bits: int) -> Tensor:
    """Whole numbers below 2^bits, of any type → bytes with 8/bits of them each."""
    codes = empty_codes(whole, bits)
    for part, code in zip(pieces(whole), code_pieces(codes, bits), strict=True):
        pack_piece(part, bits, code)
    return codes


def unpack(codes: Tensor, bits: int, n: int) -> Tensor:
    """The inverse of `pack`: n numbers as uint8."""
    out = torch.empty(n, dtype=torch.uint8, device=codes.device)
    for part, code in zip(pieces(out), code_pieces(codes, bits), strict=True):
        part.copy_(unpack_piece(code, bits, part))
    return out


def pack_piece(whole: Tensor, bits: int, codes: Tensor) -> None:
    """Byte j of a piece holds the numbers j, j + m, j + 2m … (m bytes in all), so that only whole contiguous parts are
    added: in the numbers' own type, which is exact below 256 and saves a conversion of each."""
    m = codes.shape[-1]
    packed = whole[..., :m]
    for place in range(1, 8 // bits):
        part = whole[..., place * m : (place + 1) * m]
        if part.shape[-1] < m:
            part = torch.nn.functional.pad(part, (0, m - part.shape[-1]))
        packed = torch.add(packed, part, alpha=1 << bits * place)
    codes.copy_(packed)


def unpack_piece(codes: Tensor, bits: int, like: Tensor) -> Tensor:
    """A piece's numbers, in the shape and type of `like`."""
    n = like.shape[-1]
    if bits == 8:
        return codes.to(like.dtype, copy=True)
    shifts = _shifts(bits, codes.device)
    numbers = (codes.unsqueeze(-2) >> shifts).bitwise_and_(2**bits - 1).to(like.dtype).flatten(-2)
    return numbers if numbers.shape[-1] == n else numbers[..., :n]


@functools.cache
def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device).unsqueeze(-1)
