"""What kernels on tiles of rows and channels share."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def existing(inside, c, C: tl.constexpr, BC: tl.constexpr):
    """Return which numbers of a tile exist: those of rows inside and of channels c below C."""
    kept = inside[:, None]
    if C % BC != 0:
        kept = kept & (c < C)[None, :]
    return kept


@triton.jit
def _total(x, out, parts, numbers, BP: tl.constexpr, BN: tl.constexpr):
    """Compute out[i] = Σ x[part, i]."""
    i = tl.program_id(0) * BN + tl.arange(0, BN)
    p = tl.arange(0, BP)
    sums = tl.zeros((BN,), dtype=tl.float32)
    for first in range(0, parts, BP):
        part = first + p
        inside = (part < parts)[:, None] & (i < numbers)[None, :]
        sums += tl.sum(tl.load(x + part[:, None] * numbers + i[None, :], mask=inside, other=0.0), axis=0)
    tl.store(out + i, sums, mask=i < numbers)


def total(x: Tensor) -> Tensor:
    """Return the sum of contiguous numbers (parts, …) over parts, for which torch takes several times as long."""
    out = torch.empty(x.shape[1:], dtype=x.dtype, device=x.device)
    parts, wide = (64, 32) if out.numel() < 1 << 16 else (4, 1024)
    _total[(triton.cdiv(out.numel(), wide),)](x, out, len(x), out.numel(), parts, wide, num_warps=4)
    return out
