"""Depthwise convolution: each thread computes several rows of an output, so that a loaded number is used for all."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from offbeat.executors.gpu.kernels.tiles import existing


@triton.jit
def _columns(columns, OH: tl.constexpr, OW: tl.constexpr, R: tl.constexpr, BM: tl.constexpr, first):
    """Return image, first output row and output column of BM columns of R rows each, and which of them exist."""
    q = first + tl.arange(0, BM)
    strips: tl.constexpr = (OH + R - 1) // R
    return q // (strips * OW), q // OW % strips * R, q % OW, q < columns


@triton.jit
def _plus(totals, i: tl.constexpr, value):
    """Return the totals with a value added to the i-th one."""
    return totals[:i] + (totals[i] + value,) + totals[i + 1 :]  # noqa: RUF005 — Triton has no starred tuples


@triton.jit
def _weight(kernel, tap: tl.constexpr, c, C: tl.constexpr):
    """Return the weights of a tap."""
    return tl.load(kernel + tap * C, mask=c < C, other=0.0).to(tl.float32)


@triton.jit
def _depthwise(
    x, table, out, columns, images,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, S: tl.constexpr, D: tl.constexpr,
    R: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute out[m, c] = Σ_tap x[m + tap, c]·table[tap, c] for R rows of some columns; R is 1 if S or D is not."""
    client = tl.program_id(2).to(tl.int64)
    image, oy, ox, known = _columns(columns, OH, OW, R, BM, tl.program_id(1) * BM)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    x += client * images * H * W * C
    kernel = table + client * KH * KW * C + c
    top, left = oy * S - PH, ox * S - PW
    totals = (tl.zeros((BM, BC), dtype=tl.float32),) * R
    if D > 1:
        for tap in tl.static_range(KH * KW):
            y_, x_ = top + tap // KW, left + tap % KW
            inside = known & (y_ >= 0) & (y_ < H * D) & (x_ >= 0) & (x_ < W * D) & (y_ % D == 0) & (x_ % D == 0)
            place = ((image * H + y_ // D) * W + x_ // D) * C
            a = tl.load(x + (place[:, None] + c[None, :]), mask=existing(inside, c, C, BC), other=0.0).to(tl.float32)
            totals = _plus(totals, 0, a * _weight(kernel, tap, c, C)[None, :])
    else:
        # A fixed distance from one pointer costs no instructions.
        corner = x + ((((image * H + top) * W + left) * C)[:, None] + c[None, :])
        for kx in tl.static_range(KW):
            column = known & (left + kx >= 0) & (left + kx < W)
            taps = ()
            for ky in tl.static_range(KH):
                taps = taps + (_weight(kernel, ky * KW + kx, c, C),)  # noqa: RUF005
            for j in tl.static_range((R - 1) * S + KH):  # rows of the input
                inside = column & (top + j >= 0) & (top + j < H)
                a = tl.load(corner + (j * W + kx) * C, mask=existing(inside, c, C, BC), other=0.0).to(tl.float32)
                for r in tl.static_range(max(0, j - KH + 1), min(R, j + 1)):
                    totals = _plus(totals, r, a * taps[j - r][None, :])
    for r in tl.static_range(R):
        place = (image * OH + oy + r) * OW + ox
        kept = existing(known & (oy + r < OH), c, C, BC)
        at = out + client * images * OH * OW * C + (place[:, None] * C + c[None, :])
        tl.store(at, totals[r].to(out.dtype.element_ty), mask=kept)


@triton.jit
def _depthwise_weights(
    x, g, sums, columns, images, share, clients,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, S: tl.constexpr,
    R: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute sums[part, tap, c] = Σ_m x[m + tap, c]·g[m, c] over a part of one client's columns of R rows."""
    client, part = (tl.program_id(1) % clients).to(tl.int64), tl.program_id(1) // clients
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    source = x + client * images * H * W * C + c[None, :]
    slope = g + client * images * OH * OW * C + c[None, :]
    totals = (tl.zeros((BM, BC), dtype=tl.float32),) * (KH * KW)
    for first in range(part * share, part * share + share, BM):
        image, oy, ox, known = _columns(columns, OH, OW, R, BM, first)
        top, left = oy * S - PH, ox * S - PW
        slopes = ()
        for r in tl.static_range(R):
            place = ((image * OH + oy + r) * OW + ox) * C
            kept = (known & (oy + r < OH))[:, None] & (c[None, :] < C)
            slopes = slopes + (tl.load(slope + place[:, None], mask=kept, other=0.0).to(tl.float32),)  # noqa: RUF005
        for j in tl.static_range(R + KH - 1):
            for kx in tl.static_range(KW):
                y_, x_ = top + j, left + kx
                inside = known & (y_ >= 0) & (y_ < H) & (x_ >= 0) & (x_ < W)
                place = ((image * H + y_) * W + x_) * C
                a = tl.load(source + place[:, None], mask=inside[:, None] & (c[None, :] < C), other=0.0).to(tl.float32)
                for r in tl.static_range(max(0, j - KH + 1), min(R, j + 1)):
                    totals = _plus(totals, (j - r) * KW + kx, a * slopes[r])
    place = (part * clients + client) * KH * KW * C + c
    for tap in tl.static_range(KH * KW):
        tl.store(sums + place + tap * C, tl.sum(totals[tap], axis=0), mask=c < C)


Pair = tuple[int, int]


def depthwise(x: Tensor, table: Tensor, out: Tensor, size: Pair, pad: Pair, stride: int, spread: int) -> None:
    """Convolve images x (n·B, C, H, W) to out, channels-last, with the table (n, kh·kw, C)."""
    n, channels, images = len(table), x.shape[1], len(x) // len(table)
    rows = 1 if stride > 1 or spread > 1 else 4 if out.shape[2] % 8 else 8
    columns, (bm, bc) = images * triton.cdiv(out.shape[2], rows) * out.shape[3], _tile(x, 16)
    grid = (triton.cdiv(channels, bc), triton.cdiv(columns, bm), n)
    _depthwise[grid](x, table, out, columns, images, *x.shape[1:], *out.shape[2:], *size, *pad, stride, spread,
                     rows, bm, bc, num_warps=4)  # fmt: skip


def depthwise_weight_gradient(x: Tensor, g: Tensor, sums: Tensor, size: Pair, pad: Pair, stride: int) -> None:
    """Compute the gradient by the filters from x and g (n·B, C, H, W), channels-last; sums (parts, n, kh·kw, C)."""
    (parts, n, _, channels), images = sums.shape, len(g) // sums.shape[1]
    rows = 4 if stride == 1 else 1
    columns, (bm, bc) = images * triton.cdiv(g.shape[2], rows) * g.shape[3], _tile(x, 8)
    share = triton.cdiv(triton.cdiv(columns, parts), bm) * bm
    grid = (triton.cdiv(channels, bc), n * parts)
    _depthwise_weights[grid](x, g, sums, columns, images, share, n, *x.shape[1:], *g.shape[2:], *size, *pad, stride,
                             rows, bm, bc, num_warps=4)  # fmt: skip


def _tile(x: Tensor, columns: int) -> Pair:
    """Return columns and channels of a tile with which no register is spilled, for 16 bytes per load where possible."""
    width = 32 * 4 // x.element_size()
    channels = min(width, triton.next_power_of_2(x.shape[1]))
    return columns * 32 // width, channels
