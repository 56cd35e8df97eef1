"""Depthwise convolution: each thread computes a patch of an output, so that a loaded number is used for all of it."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from offbeat.executors.gpu.kernels.tiles import existing


@triton.jit
def _patches(
    patches, OH: tl.constexpr, OW: tl.constexpr, R: tl.constexpr, Q: tl.constexpr, BM: tl.constexpr, first
):  # fmt: skip
    """Return image, first row and first column of BM patches of R rows and Q columns, and which of them exist."""
    p = first + tl.arange(0, BM)
    down: tl.constexpr = (OH + R - 1) // R
    across: tl.constexpr = (OW + Q - 1) // Q
    return p // (down * across), p // across % down * R, p % across * Q, p < patches


@triton.jit
def _plus(totals, i: tl.constexpr, value):
    """Return the totals with a value added to the i-th one."""
    return totals[:i] + (totals[i] + value,) + totals[i + 1 :]  # noqa: RUF005 — Triton has no starred tuples


@triton.jit
def _weight(kernel, tap: tl.constexpr, c, C: tl.constexpr):
    """Return the weights of a tap."""
    return tl.load(kernel + tap * C, mask=c < C, other=0.0).to(tl.float32)


@triton.jit
def _numbers(
    first, known, oy, ox, c, C: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, R: tl.constexpr, Q: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """Return the numbers of patches row by row, from pointers to the first ones."""
    numbers = ()
    for r in tl.static_range(R):
        for q in tl.static_range(Q):
            kept = existing(known & (oy + r < OH) & (ox + q < OW), c, C, BC)
            value = tl.load(first + (r * OW + q) * C, mask=kept, other=0.0).to(tl.float32)
            numbers = numbers + (value,)  # noqa: RUF005
    return numbers


@triton.jit
def _depthwise(
    x, table, residual, out, patches, images,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, S: tl.constexpr, D: tl.constexpr,
    RESIDUAL: tl.constexpr, R: tl.constexpr, Q: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute out[m, c] = Σ_tap x[m + tap, c]·table[tap, c] (+ residual[m, c]) for some patches.

    A patch is a single number if S or D is not 1.
    """
    client = tl.program_id(2).to(tl.int64)
    image, oy, ox, known = _patches(patches, OH, OW, R, Q, BM, tl.program_id(1) * BM)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    x += client * images * H * W * C
    kernel = table + client * KH * KW * C + c
    top, left = oy * S - PH, ox * S - PW
    to = ((image * OH + oy) * OW + ox) * C
    to = client * images * OH * OW * C + (to[:, None] + c[None, :])
    totals = (tl.zeros((BM, BC), dtype=tl.float32),) * (R * Q)
    if RESIDUAL:  # loaded first: after a store, each load would wait for it
        totals = _numbers(residual + to, known, oy, ox, c, C, OH, OW, R, Q, BC)
    if D > 1:
        for tap in tl.static_range(KH * KW):
            y_, x_ = top + tap // KW, left + tap % KW
            inside = known & (y_ >= 0) & (y_ < H * D) & (x_ >= 0) & (x_ < W * D) & (y_ % D == 0) & (x_ % D == 0)
            place = ((image * H + y_ // D) * W + x_ // D) * C
            a = tl.load(x + (place[:, None] + c[None, :]), mask=existing(inside, c, C, BC), other=0.0).to(tl.float32)
            totals = _plus(totals, 0, a * _weight(kernel, tap, c, C)[None, :])
    else:
        taps = ()
        for tap in tl.static_range(KH * KW):
            taps = taps + (_weight(kernel, tap, c, C),)  # noqa: RUF005
        # A fixed distance from one pointer costs no instructions.
        corner = x + ((((image * H + top) * W + left) * C)[:, None] + c[None, :])
        for j in tl.static_range(R + KH - 1):  # rows and columns of the input
            row = known & (top + j >= 0) & (top + j < H)
            for i in tl.static_range(Q + KW - 1):
                inside = row & (left + i >= 0) & (left + i < W)
                a = tl.load(corner + (j * W + i) * C, mask=existing(inside, c, C, BC), other=0.0).to(tl.float32)
                for r in tl.static_range(max(0, j - KH + 1), min(R, j + 1)):
                    for q in tl.static_range(max(0, i - KW + 1), min(Q, i + 1)):
                        totals = _plus(totals, r * Q + q, a * taps[(j - r) * KW + i - q][None, :])
    for r in tl.static_range(R):
        for q in tl.static_range(Q):
            kept = existing(known & (oy + r < OH) & (ox + q < OW), c, C, BC)
            tl.store(out + to + (r * OW + q) * C, totals[r * Q + q].to(out.dtype.element_ty), mask=kept)


@triton.jit
def _depthwise_weights(
    x, g, sums, patches, images, share, clients,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, S: tl.constexpr,
    R: tl.constexpr, Q: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute sums[part, tap, c] = Σ_m x[m + tap, c]·g[m, c] over a part of one client's patches."""
    client, part = (tl.program_id(1) % clients).to(tl.int64), tl.program_id(1) // clients
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    x += client * images * H * W * C
    g += client * images * OH * OW * C
    totals = (tl.zeros((BM, BC), dtype=tl.float32),) * (KH * KW)
    for first in range(part * share, part * share + share, BM):
        image, oy, ox, known = _patches(patches, OH, OW, R, Q, BM, first)
        top, left = oy * S - PH, ox * S - PW
        slope = g + ((((image * OH + oy) * OW + ox) * C)[:, None] + c[None, :])
        slopes = _numbers(slope, known, oy, ox, c, C, OH, OW, R, Q, BC)
        corner = x + ((((image * H + top) * W + left) * C)[:, None] + c[None, :])
        for j in tl.static_range(R + KH - 1):
            row = known & (top + j >= 0) & (top + j < H)
            for i in tl.static_range(Q + KW - 1):
                inside = existing(row & (left + i >= 0) & (left + i < W), c, C, BC)
                a = tl.load(corner + (j * W + i) * C, mask=inside, other=0.0).to(tl.float32)
                for r in tl.static_range(max(0, j - KH + 1), min(R, j + 1)):
                    for q in tl.static_range(max(0, i - KW + 1), min(Q, i + 1)):
                        totals = _plus(totals, (j - r) * KW + i - q, a * slopes[r * Q + q])
    place = (part * clients + client) * KH * KW * C + c
    for tap in tl.static_range(KH * KW):
        tl.store(sums + place + tap * C, tl.sum(totals[tap], axis=0), mask=c < C)


Pair = tuple[int, int]


def depthwise(
    x: Tensor, table: Tensor, out: Tensor, size: Pair, pad: Pair, stride: int, spread: int,
    residual: Tensor | None = None,
) -> None:  # fmt: skip
    """Convolve images x (n·B, C, H, W) to out, channels-last, with the table (n, kh·kw, C); then add the residual."""
    n, channels, images = len(table), x.shape[1], len(x) // len(table)
    rows, abreast = (1, 1) if stride > 1 or spread > 1 else PATCH
    patches = images * triton.cdiv(out.shape[2], rows) * triton.cdiv(out.shape[3], abreast)
    bm, bc = _tile(x)
    grid = (triton.cdiv(channels, bc), triton.cdiv(patches, bm), n)
    _depthwise[grid](x, table, x if residual is None else residual, out, patches, images, *x.shape[1:], *out.shape[2:],
                     *size, *pad, stride, spread, residual is not None, rows, abreast, bm, bc, num_warps=4)  # fmt: skip


def depthwise_weight_gradient(x: Tensor, g: Tensor, sums: Tensor, size: Pair, pad: Pair, stride: int) -> None:
    """Compute the gradient by the filters from x and g (n·B, C, H, W), channels-last; sums (parts, n, kh·kw, C)."""
    (parts, n, _, channels), images = sums.shape, len(g) // sums.shape[1]
    rows, abreast = (1, 1) if stride > 1 else PATCH
    patches = images * triton.cdiv(g.shape[2], rows) * triton.cdiv(g.shape[3], abreast)
    bm, bc = _tile(x)
    share = triton.cdiv(triton.cdiv(patches, parts), bm) * bm
    grid = (triton.cdiv(channels, bc), n * parts)
    _depthwise_weights[grid](x, g, sums, patches, images, share, n, *x.shape[1:], *g.shape[2:], *size, *pad, stride,
                             rows, abreast, bm, bc, num_warps=4)  # fmt: skip


PATCH = (4, 4)  # rows and columns that a thread computes


def _tile(x: Tensor) -> Pair:
    """Return patches and channels of a tile: two channels for each of 128 threads, so that no register is spilled."""
    width = 32 * 4 // x.element_size()
    channels = min(width, triton.next_power_of_2(x.shape[1]))
    return 256 // width, channels
