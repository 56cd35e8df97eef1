"""Operations on the active rows of a stack."""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _keep(new, old, on, width, stride, BLOCK: tl.constexpr):
    """Compute old[row] = new[row] for rows that are on."""
    row = tl.program_id(1).to(tl.int64)
    if tl.load(on + row):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(old + row * stride + place, tl.load(new + row * width + place, mask=place < width), mask=place < width)


@triton.jit
def _descend(y, g, lr, on, width, y_stride, g_stride, decay, BLOCK: tl.constexpr):
    """Compute y[row] −= lr[row]·(g[row] + decay·y[row]) for rows that are on."""
    row = tl.program_id(1).to(tl.int64)
    if tl.load(on + row):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        old = tl.load(y + row * y_stride + place, mask=place < width)
        slope = tl.load(g + row * g_stride + place, mask=place < width) + decay * old
        tl.store(y + row * y_stride + place, old - tl.load(lr + row) * slope, mask=place < width)


def keep(new: Tensor, old: Tensor, on: Tensor) -> None:
    """Copy new, which can be broadcast to (rows, d), into old (rows, d), for rows that are on (rows, 1)."""
    rows, width = old.shape
    new = new.expand_as(old).contiguous()
    _keep[(triton.cdiv(width, 4096), rows)](new, old, on, width, old.stride(0), 4096, num_warps=8)


def descend(y: Tensor, g: Tensor, lr: Tensor, on: Tensor, decay: float) -> None:
    """Take a plain step of y (rows, …), with contiguous rows, along −g (rows, …), for rows that are on (rows, 1)."""
    rows, width = len(g), math.prod(g.shape[1:])
    if not width:
        return
    g = g if g[0].is_contiguous() else g.contiguous()
    block = min(4096, triton.next_power_of_2(width))
    grid = (triton.cdiv(width, block), rows)
    _descend[grid](y, g, lr, on, width, y.stride(0), g.stride(0), decay, block, num_warps=8 if block > 1024 else 4)
