"""Uniform quantization to 8, 4 or 2 bits, and packing of such numbers into bytes.

Long vectors are processed in pieces. On a CPU the pieces are processed one by one, so that each stays in the cache. On
other devices all full pieces form one batch. Nothing here synchronizes a device: the ends of a range remain tensors.
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
"""Number of entries that are packed together. It is part of the format of transmitted and saved vectors."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A quantized vector: codes for values from lo to lo + (2^bits − 1)·u, packed 8/bits to a byte.

    lo and u are scalars, or vectors with an entry for each of several ranges.
    """

    codes: Tensor  # uint8
    lo: Tensor  # in the precision of the vector
    u: Tensor  # in the precision of the vector


def pieces(x: Tensor, size: int = PIECE) -> Sequence[Tensor]:
    """Return views whose last dimension is one piece.

    On a CPU there is one view per piece. On other devices there is one view of all full pieces and one of the rest.
    """
    if x.numel() <= size:
        return (x,)
    if one_by_one(x):
        return torch.split(x, size)
    whole = x.numel() // size * size
    return [part for part in (x[:whole].view(-1, size), x[whole:]) if part.numel()]


def one_by_one(x: Tensor) -> bool:
    """Return whether to process pieces one by one, which is faster if they stay in a CPU cache."""
    return x.device.type == "cpu"


def code_pieces(codes: Tensor, bits: int) -> Sequence[Tensor]:
    """Return views of the codes of each piece of a vector."""
    return pieces(codes, PIECE * bits // 8)


def span(x: Tensor, top: int, sizes: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Return lo and u = (hi − lo)/top of a vector or of each row of a matrix.

    Args:
        x: The vector or matrix.
        top: The largest code.
        sizes: Lengths of the parts of a vector that have a range each; a single range when left out.
    """
    if sizes:
        ends = [torch.aminmax(part, dim=-1) for part in torch.split(x, list(sizes), dim=-1)]
        low, high = (torch.stack(each, dim=-1) for each in zip(*ends, strict=True))
    elif x.ndim == 1:
        low, high = torch.aminmax(x)
    else:
        low, high = x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True)
    return low, high.sub_(low).div_(top)


def spread(ends: Tensor, ranges: Tensor | None) -> Tensor:
    """Return lo or u for each entry of a piece, or unchanged if all entries share a range.

    Args:
        ends: Values of the ranges, or rows of them.
        ranges: The number of each entry's range, with the shape of the piece.
    """
    return ends if ranges is None else ends.index_select(-1, ranges.flatten()).view(*ends.shape[:-1], *ranges.shape)


def range_pieces(ranges: Tensor | None, like: Tensor) -> Sequence[Tensor | None]:
    """Return the numbers of the ranges of each piece of a vector."""
    return [None] * len(pieces(like)) if ranges is None else pieces(ranges)


def rounded(x: Tensor, top: int, lo: Tensor, u: Tensor, noise: Tensor | float) -> Tensor:
    """Return ⌊(x − lo)/u + noise⌋ as integers in the dtype of x. They are 0 for a constant vector, where u is 0."""
    step = u.clamp_min(torch.finfo(u.dtype).tiny)
    return (x - lo).div_(step).add_(noise).floor_().clamp_max_(top)


def quantize(x: Tensor, bits: int, noise: Tensor) -> Packed:
    """Quantize a vector with unbiased stochastic rounding to 2^bits levels between its smallest and largest entry.

    q = lo + u·⌊(x − lo)/u + U⌋ with U ~ [0, 1) given as `noise` and u = (hi − lo)/(2^bits − 1).
    """
    top = 2**bits - 1
    lo, u = span(x, top)
    codes = empty_codes(x, bits)
    for part, part_noise, code in zip(pieces(x), pieces(noise), code_pieces(codes, bits), strict=True):
        pack_piece(rounded(part, top, lo, u, part_noise), bits, code)
    return Packed(codes, lo, u)


def dequantize(q: Packed, bits: int, like: Tensor, ranges: Tensor | None = None) -> Tensor:
    """Return the values of a quantized vector, with the shape and dtype of `like`."""
    out = torch.empty_like(like)
    for part, values in zip(pieces(out), decoded(q, bits, like, ranges), strict=True):
        part.copy_(values)
    return out


def decoded(q: Packed, bits: int, like: Tensor, ranges: Tensor | None = None) -> Iterator[Tensor]:
    """Yield the values of a quantized vector piece by piece.

    Args:
        q: The quantized vector.
        bits: Bits per number.
        like: A vector with the shape and dtype of the values.
        ranges: The number of each entry's range; None if there is only one.
    """
    for code, part, own in zip(code_pieces(q.codes, bits), pieces(like), range_pieces(ranges, like), strict=True):
        yield unpack_piece(code, bits, part).mul_(spread(q.u, own)).add_(spread(q.lo, own))


def empty_codes(x: Tensor, bits: int) -> Tensor:
    """Return an uninitialized tensor for the codes of x."""
    return torch.empty(-(-x.numel() * bits // 8), dtype=torch.uint8, device=x.device)


def pack(numbers: Tensor, bits: int) -> Tensor:
    """Pack integers below 2^bits, of any dtype, into bytes of 8/bits numbers each."""
    codes = empty_codes(numbers, bits)
    for part, code in zip(pieces(numbers), code_pieces(codes, bits), strict=True):
        pack_piece(part, bits, code)
    return codes


def unpack(codes: Tensor, bits: int, n: int) -> Tensor:
    """Unpack n numbers from the bytes of `pack`, as uint8."""
    out = torch.empty(n, dtype=torch.uint8, device=codes.device)
    for part, code in zip(pieces(out), code_pieces(codes, bits), strict=True):
        part.copy_(unpack_piece(code, bits, part))
    return out


def pack_piece(numbers: Tensor, bits: int, codes: Tensor) -> None:
    """Pack the integers of a piece into its codes.

    Byte j of m holds the numbers j, j + m, j + 2m …, so that only contiguous parts are added. The sum is computed in
    the dtype of the numbers, which is exact below 256 and avoids a conversion of each part.
    """
    m = codes.shape[-1]
    packed = numbers[..., :m]
    for place in range(1, 8 // bits):
        part = numbers[..., place * m : (place + 1) * m]
        if part.shape[-1] < m:
            part = torch.nn.functional.pad(part, (0, m - part.shape[-1]))
        packed = torch.add(packed, part, alpha=1 << bits * place)
    codes.copy_(packed)


def unpack_piece(codes: Tensor, bits: int, like: Tensor) -> Tensor:
    """Return the numbers of a piece, with the shape and dtype of `like`."""
    n = like.shape[-1]
    if bits == 8:
        return codes.to(like.dtype, copy=True)
    shifts = _shifts(bits, codes.device)
    numbers = (codes.unsqueeze(-2) >> shifts).bitwise_and_(2**bits - 1).to(like.dtype).flatten(-2)
    return numbers if numbers.shape[-1] == n else numbers[..., :n]


@functools.cache
def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device).unsqueeze(-1)
