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


@triton.jit
def _adam(
    y, g, m, v, lr, corrections, on, t, steps, width, y_stride, g_stride, m_stride, t_stride,
    decay, beta1, beta2, epsilon,
    DECOUPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take a step of Adam, or of AdamW if DECOUPLED is set, in rows that are on: see `client/rules/adam.py`.

    The moments are not read in a row's first step, in which they are zero, and not written in its last one.
    """
    row = tl.program_id(1).to(tl.int64)
    if tl.load(on + row):
        done = tl.load(t + row * t_stride).to(tl.int32)
        rate = (tl.load(lr + row).to(tl.float64) / tl.load(corrections + done * 2)).to(tl.float32)
        root = tl.load(corrections + done * 2 + 1).to(tl.float32)
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = place < width
        old = tl.load(y + row * y_stride + place, mask=inside, other=0.0)
        slope = tl.load(g + row * g_stride + place, mask=inside, other=0.0)
        if DECOUPLED:
            old *= 1.0 - tl.load(lr + row) * decay
        else:
            slope += decay * old
        known = place < tl.where(done > 0, width, 0)
        first = beta1 * tl.load(m + row * m_stride + place, mask=known, other=0.0) + (1.0 - beta1) * slope
        second = beta2 * tl.load(v + row * m_stride + place, mask=known, other=0.0) + (1.0 - beta2) * slope * slope
        down = rate * first / (tl.sqrt(second) / root + epsilon)
        needed = place < tl.where(done + 1 < tl.load(steps + row), width, 0)
        tl.store(m + row * m_stride + place, first, mask=needed)
        tl.store(v + row * m_stride + place, second, mask=needed)
        tl.store(y + row * y_stride + place, old - down, mask=inside)


def keep(new: Tensor, old: Tensor, on: Tensor) -> None:
    """Copy new, which can be broadcast to (rows, d), into old (rows, d), for rows that are on (rows, 1)."""
    rows, width = old.shape
    new = new.expand_as(old).contiguous()
    _keep[(triton.cdiv(width, 4096), rows)](new, old, on, width, old.stride(0), 4096, num_warps=8)


def descend(y: Tensor, g: Tensor, lr: Tensor, on: Tensor, decay: float) -> None:
    """Take a plain step of y (rows, …), with contiguous rows, along −g (rows, …), for rows that are on (rows, 1)."""
    width = math.prod(g.shape[1:])
    if not width:
        return
    g = g if g[0].is_contiguous() else g.contiguous()
    block, grid, warps = _blocks(len(g), width)
    _descend[grid](y, g, lr, on, width, y.stride(0), g.stride(0), decay, block, num_warps=warps)


def adam(
    y: Tensor, g: Tensor, m: Tensor, v: Tensor, lr: Tensor, corrections: Tensor, on: Tensor, t: Tensor, steps: Tensor,
    *, decay: float, decoupled: bool, betas: tuple[float, float], epsilon: float,
) -> None:  # fmt: skip
    """Take a step of Adam or AdamW in place.

    Args:
        y: Models (rows, …) with contiguous rows.
        g: Gradients (rows, …).
        m: First moments, with contiguous rows.
        v: Second moments, with the strides of m.
        lr: Learning rates (rows, 1).
        corrections: 1 − β₁^t and √(1 − β₂^t) for t = 1, 2, … (most steps, 2), in double precision.
        on: Rows to change (rows, 1).
        t: Steps that each row has done (rows, 1).
        steps: Steps that each row is to do (rows, 1).
        decay: Weight decay.
        decoupled: Whether the decay is AdamW's.
        betas: β₁ and β₂.
        epsilon: ε.
    """
    width = math.prod(g.shape[1:])
    if not width:
        return
    g = g if g[0].is_contiguous() else g.contiguous()
    block, grid, warps = _blocks(len(g), width)
    _adam[grid](y, g, m, v, lr, corrections, on, t, steps, width, y.stride(0), g.stride(0), m.stride(0), t.stride(0),
                decay, *betas, epsilon, decoupled, block, num_warps=warps)  # fmt: skip


def _blocks(rows: int, width: int) -> tuple[int, tuple[int, int], int]:
    """Return the size of a block, the grid and the number of warps."""
    block = min(4096, triton.next_power_of_2(width))
    return block, (triton.cdiv(width, block), rows), 8 if block > 1024 else 4
