"""The tiles of `convolution`, in Triton.  Capitals are sizes, as in its documentation; those in the signature's second
line are known when the kernel is compiled."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _products(
    x, table, out, pixels, H, W,
    C: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[m, o] = Σ_k patch(x)[m, k]·table[k, o] for a tile of one client's pixels m = (image, row, column)."""
    client = tl.program_id(1)
    K: tl.constexpr = KH * KW * C
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(2) * BN + tl.arange(0, BN)
    row, column = (m // W) % H, m % W
    start = client.to(tl.int64) * pixels
    image = x + start * C
    kernel = table + client.to(tl.int64) * K * N
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        tap, c = k // C, k % C
        dy, dx = tap // KW - KH // 2, tap % KW - KW // 2
        y_, x_ = row[:, None] + dy[None, :], column[:, None] + dx[None, :]
        inside = (m[:, None] < pixels) & (k[None, :] < K) & (y_ >= 0) & (y_ < H) & (x_ >= 0) & (x_ < W)
        place = (m[:, None] + (dy * W + dx)[None, :]) * C + c[None, :]
        a = tl.load(image + place, mask=inside, other=0.0)
        b = tl.load(kernel + k[:, None] * N + o[None, :], mask=(k[:, None] < K) & (o[None, :] < N), other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    kept = (m[:, None] < pixels) & (o[None, :] < N)
    tl.store(out + (start + m[:, None]) * N + o[None, :], total.to(out.dtype.element_ty), mask=kept)


@triton.jit
def _weights(
    x, g, sums, pixels, share, clients, H, W,
    C: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """sums[part, k, o] = Σ_m patch(x)[m, k]·g[m, o] over the pixels m of a part of one client's batch."""
    client, part = tl.program_id(1) % clients, tl.program_id(1) // clients
    K: tl.constexpr = KH * KW * C
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    o = tl.program_id(2) * BN + tl.arange(0, BN)
    tap, c = k // C, k % C
    dy, dx = tap // KW - KH // 2, tap % KW - KW // 2
    shift = (dy * W + dx) * C + c
    start = client.to(tl.int64) * pixels
    image, slope = x + start * C, g + start * N
    total = tl.zeros((BK, BN), dtype=tl.float32)
    for m0 in range(0, share, BM):
        m = part * share + m0 + tl.arange(0, BM)
        row, column = (m // W) % H, m % W
        y_, x_ = row[:, None] + dy[None, :], column[:, None] + dx[None, :]
        inside = (m[:, None] < pixels) & (k[None, :] < K) & (y_ >= 0) & (y_ < H) & (x_ >= 0) & (x_ < W)
        a = tl.load(image + (m * C)[:, None] + shift[None, :], mask=inside, other=0.0)
        b = tl.load(slope + (m * N)[:, None] + o[None, :], mask=(m[:, None] < pixels) & (o[None, :] < N), other=0.0)
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
    place = ((part * clients + client).to(tl.int64) * K + k[:, None]) * N + o[None, :]
    tl.store(sums + place, total, mask=(k[:, None] < K) & (o[None, :] < N))


@triton.jit
def _weights_by_channel(
    x, g, sums, pixels, share, clients, H, W,
    C: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same for images that lie as (image, channel, row, column).

    The sum runs over pixels, and tensor cores take 32-bit factors only with the terms of a sum side by side.
    """
    client, part = tl.program_id(1) % clients, tl.program_id(1) // clients
    K: tl.constexpr = KH * KW * C
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    o = tl.program_id(2) * BN + tl.arange(0, BN)
    tap, c = k // C, k % C
    dy, dx = tap // KW - KH // 2, tap % KW - KW // 2
    area = H * W
    start = client.to(tl.int64) * pixels
    image, slope = x + start * C, g + start * N
    total = tl.zeros((BK, BN), dtype=tl.float32)
    for m0 in range(0, share, BM):
        m = part * share + m0 + tl.arange(0, BM)
        pixel, which = m % area, m // area
        row, column = pixel // W, pixel % W
        y_, x_ = row[None, :] + dy[:, None], column[None, :] + dx[:, None]
        inside = (m[None, :] < pixels) & (k[:, None] < K) & (y_ >= 0) & (y_ < H) & (x_ >= 0) & (x_ < W)
        place = (which[None, :] * C + c[:, None]) * area + pixel[None, :] + (dy * W + dx)[:, None]
        a = tl.load(image + place, mask=inside, other=0.0)
        place = (which[None, :] * N + o[:, None]) * area + pixel[None, :]
        b = tl.load(slope + place, mask=(m[None, :] < pixels) & (o[:, None] < N), other=0.0)
        total = tl.dot(a, tl.trans(b), total, input_precision=PRECISION)
    place = ((part * clients + client).to(tl.int64) * K + k[:, None]) * N + o[None, :]
    tl.store(sums + place, total, mask=(k[:, None] < K) & (o[None, :] < N))


@triton.jit
def _depthwise(
    x, table, out, pixels, H, W,
    C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """out[m, c] = Σ_tap x[m + tap, c]·table[tap, c] for a tile of one client's pixels: each channel by itself."""
    client = tl.program_id(1)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    row, column = (m // W) % H, m % W
    start = client.to(tl.int64) * pixels
    image = x + start * C
    kernel = table + client.to(tl.int64) * KH * KW * C
    total = tl.zeros((BM, BC), dtype=tl.float32)
    for tap in tl.static_range(KH * KW):
        dy, dx = tap // KW - KH // 2, tap % KW - KW // 2
        inside = (m < pixels) & (row + dy >= 0) & (row + dy < H) & (column + dx >= 0) & (column + dx < W)
        place = (m + dy * W + dx)[:, None] * C + c[None, :]
        a = tl.load(image + place, mask=inside[:, None] & (c[None, :] < C), other=0.0)
        b = tl.load(kernel + tap * C + c, mask=c < C, other=0.0)
        total += a.to(tl.float32) * b.to(tl.float32)[None, :]
    kept = (m[:, None] < pixels) & (c[None, :] < C)
    tl.store(out + (start + m[:, None]) * C + c[None, :], total.to(out.dtype.element_ty), mask=kept)


@triton.jit
def _depthwise_weights(
    x, g, sums, pixels, share, clients, H, W,
    C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """sums[part, tap, c] = Σ_m x[m + tap, c]·g[m, c] over the pixels m of a part of one client's batch."""
    tap = tl.program_id(0)
    client, part = tl.program_id(1) % clients, tl.program_id(1) // clients
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    dy, dx = tap // KW - KH // 2, tap % KW - KW // 2
    start = client.to(tl.int64) * pixels
    image, slope = x + start * C, g + start * C
    total = tl.zeros((BM, BC), dtype=tl.float32)
    for m0 in range(0, share, BM):
        m = part * share + m0 + tl.arange(0, BM)
        row, column = (m // W) % H, m % W
        inside = (m < pixels) & (row + dy >= 0) & (row + dy < H) & (column + dx >= 0) & (column + dx < W)
        kept = inside[:, None] & (c[None, :] < C)
        a = tl.load(image + (m + dy * W + dx)[:, None] * C + c[None, :], mask=kept, other=0.0)
        b = tl.load(slope + m[:, None] * C + c[None, :], mask=kept, other=0.0)
        total += a.to(tl.float32) * b.to(tl.float32)
    place = ((part * clients + client).to(tl.int64) * KH * KW + tap) * C + c
    tl.store(sums + place, tl.sum(total, axis=0), mask=c < C)


@triton.jit
def _turn(x, out, area, C: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr):
    """(image, pixel, channel) → (image, channel, pixel)."""
    start = tl.program_id(0).to(tl.int64) * area * C
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    tile = tl.load(x + start + m[:, None] * C + c[None, :], mask=(m[:, None] < area) & (c[None, :] < C), other=0.0)
    kept = (c[:, None] < C) & (m[None, :] < area)
    tl.store(out + start + c[:, None] * area + m[None, :], tl.trans(tile), mask=kept)


def products(x: Tensor, table: Tensor, out: Tensor, kh: int, kw: int, precision: str) -> None:
    """Images (n·B, C, H, W) and out (n·B, O, H, W), both channels-last; table (n, kh·kw·C, O)."""
    n, _, columns = table.shape
    images, channels, height, width = x.shape
    pixels = images // n * height * width
    bm, bn = 256, max(16, min(64, triton.next_power_of_2(columns)))
    grid = (triton.cdiv(pixels, bm), n, triton.cdiv(columns, bn))
    _products[grid](x, table, out, pixels, height, width, channels, columns, kh, kw, bm, bn, 32, precision,
                    num_warps=8, num_stages=2 if channels >= 16 else 3)  # fmt: skip


def weight_gradient(x: Tensor, g: Tensor, sums: Tensor, n: int, kh: int, kw: int, precision: str) -> None:
    """Images and slopes (n·B, channels, H, W), channels-last; sums (parts, n, kh·kw·C, O)."""
    images, channels, height, width = x.shape
    parts, _, taps, out = sums.shape
    pixels = images // n * height * width
    kernel = _weights
    if x.element_size() == 4 and channels >= 16:
        kernel, x, g = _weights_by_channel, _turned(x), _turned(g)
    bm, bk = (32 if x.element_size() == 4 else 64), (128 if taps >= 128 else 32)
    bn = max(16, min(64, triton.next_power_of_2(out)))
    share = triton.cdiv(triton.cdiv(pixels, parts), bm) * bm
    grid = (triton.cdiv(taps, bk), n * parts, triton.cdiv(out, bn))
    kernel[grid](x, g, sums, pixels, share, n, height, width, channels, out, kh, kw, bm, bn, bk, precision,
                 num_warps=4, num_stages=3)  # fmt: skip


def depthwise(x: Tensor, table: Tensor, out: Tensor, kh: int, kw: int) -> None:
    """Images and out (n·B, C, H, W), channels-last; table (n, kh·kw, C)."""
    images, channels, height, width = x.shape
    n = len(table)
    pixels = images // n * height * width
    bc = min(64, triton.next_power_of_2(channels))
    grid = (triton.cdiv(pixels, 64), n, triton.cdiv(channels, bc))
    _depthwise[grid](x, table, out, pixels, height, width, channels, kh, kw, 64, bc, num_warps=4)


def depthwise_weight_gradient(x: Tensor, g: Tensor, sums: Tensor, kh: int, kw: int) -> None:
    """Images and slopes (n·B, C, H, W), channels-last; sums (parts, n, kh·kw, C)."""
    images, channels, height, width = x.shape
    parts, n = sums.shape[:2]
    pixels, bm, bc = images // n * height * width, 32, min(64, triton.next_power_of_2(channels))
    share = triton.cdiv(triton.cdiv(pixels, parts), bm) * bm
    grid = (kh * kw, n * parts, triton.cdiv(channels, bc))
    _depthwise_weights[grid](x, g, sums, pixels, share, n, height, width, channels, kh, kw, bm, bc, num_warps=4)


def _turned(x: Tensor) -> Tensor:
    """Channels-last images, contiguous by channel."""
    images, channels, height, width = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    bc = min(64, triton.next_power_of_2(channels))
    grid = (images, triton.cdiv(height * width, 256), triton.cdiv(channels, bc))
    _turn[grid](x, out, height * width, channels, 256, bc, num_warps=4)
    return out
