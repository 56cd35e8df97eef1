"""Depthwise convolution, tile by tile."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _depthwise(
    x, table, out, pixels,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, S: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute out[m, c] = Σ_tap x[m + tap, c]·table[tap, c] for a tile of one client's pixels."""
    client = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    origin, top, left = m // (OH * OW) * (H * W), m // OW % OH * S - PH, m % OW * S - PW
    image = x + client * (pixels // (OH * OW) * H * W * C)
    kernel = table + client * KH * KW * C
    total = tl.zeros((BM, BC), dtype=tl.float32)
    for tap in tl.static_range(KH * KW):
        y_, x_ = top + tap // KW, left + tap % KW
        inside = (m < pixels) & (y_ >= 0) & (y_ < H * D) & (x_ >= 0) & (x_ < W * D)
        if D > 1:
            inside = inside & (y_ % D == 0) & (x_ % D == 0)
            y_, x_ = y_ // D, x_ // D
        place = (origin + y_ * W + x_)[:, None] * C + c[None, :]
        a = tl.load(image + place, mask=inside[:, None] & (c[None, :] < C), other=0.0)
        b = tl.load(kernel + tap * C + c, mask=c < C, other=0.0)
        total += a.to(tl.float32) * b.to(tl.float32)[None, :]
    kept = (m[:, None] < pixels) & (c[None, :] < C)
    tl.store(out + (client * pixels + m[:, None]) * C + c[None, :], total.to(out.dtype.element_ty), mask=kept)


@triton.jit
def _depthwise_weights(
    x, g, sums, pixels, share, clients,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, S: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute sums[part, tap, c] = Σ_m x[m + tap, c]·g[m, c] over the pixels m of a part of one client's batch."""
    tap = tl.program_id(0)
    client, part = (tl.program_id(1) % clients).to(tl.int64), tl.program_id(1) // clients
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    image, slope = x + client * (pixels // (OH * OW) * H * W * C), g + client * pixels * C
    total = tl.zeros((BM, BC), dtype=tl.float32)
    for m0 in range(0, share, BM):
        m = part * share + m0 + tl.arange(0, BM)
        y_, x_ = m // OW % OH * S - PH + tap // KW, m % OW * S - PW + tap % KW
        inside = (m < pixels) & (y_ >= 0) & (y_ < H) & (x_ >= 0) & (x_ < W)
        kept = inside[:, None] & (c[None, :] < C)
        place = (m // (OH * OW) * (H * W) + y_ * W + x_)[:, None] * C + c[None, :]
        a = tl.load(image + place, mask=kept, other=0.0)
        b = tl.load(slope + m[:, None] * C + c[None, :], mask=kept, other=0.0)
        total += a.to(tl.float32) * b.to(tl.float32)
    place = ((part * clients + client) * KH * KW + tap) * C + c
    tl.store(sums + place, tl.sum(total, axis=0), mask=c < C)


Pair = tuple[int, int]


def depthwise(x: Tensor, table: Tensor, out: Tensor, size: Pair, pad: Pair, stride: int, spread: int) -> None:
    """Convolve images x (n·B, C, H, W) to out, channels-last, with the table (n, kh·kw, C)."""
    n, channels = len(table), x.shape[1]
    pixels = len(x) // n * out.shape[2] * out.shape[3]
    bc = min(64, triton.next_power_of_2(channels))
    grid = (triton.cdiv(pixels, 64), n, triton.cdiv(channels, bc))
    _depthwise[grid](x, table, out, pixels, *x.shape[1:], *out.shape[2:], *size, *pad, stride, spread, 64, bc,
                     num_warps=4)  # fmt: skip


def depthwise_weight_gradient(x: Tensor, g: Tensor, sums: Tensor, size: Pair, pad: Pair, stride: int) -> None:
    """Compute the gradient by the filters from x and g (n·B, C, H, W), channels-last; sums (parts, n, kh·kw, C)."""
    (parts, n, taps, channels), bm = sums.shape, 32
    pixels, bc = len(g) // n * g.shape[2] * g.shape[3], min(64, triton.next_power_of_2(channels))
    share = triton.cdiv(triton.cdiv(pixels, parts), bm) * bm
    grid = (taps, n * parts, triton.cdiv(channels, bc))
    _depthwise_weights[grid](x, g, sums, pixels, share, n, *x.shape[1:], *g.shape[2:], *size, *pad, stride, bm, bc,
                             num_warps=4)  # fmt: skip
