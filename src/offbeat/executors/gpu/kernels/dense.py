"""Dense convolution, tile by tile."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _products(
    x, table, residual, out, batch,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, N: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, S: tl.constexpr, D: tl.constexpr,
    RESIDUAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute out[m, o] = Σ_k patch(x)[m, k]·table[o, k] for a tile of one client's pixels m = (image, row, column).

    Where there is a residual, it is added.

    A patch begins at S times the pixel's position, minus the padding; x is dilated by D, with zeros in between. The
    pixels of a tile are D apart, so that the zeros coincide with the same taps for all of them; these are skipped.
    """
    client = tl.program_id(1).to(tl.int64)
    K: tl.constexpr = KH * KW * C
    PIXELS_H: tl.constexpr = (OH + D - 1) // D
    PIXELS_W: tl.constexpr = (OW + D - 1) // D
    m = tl.program_id(0) // (D * D) * BM + tl.arange(0, BM)
    number, row, column = m // (PIXELS_H * PIXELS_W), m // PIXELS_W % PIXELS_H, m % PIXELS_W
    wanted = number < batch
    if D == 1:  # all taps, from the first
        down, right, rows, columns, abreast = 0, 0, KH, KW, KW
    else:
        phase_y, phase_x = tl.program_id(0) % (D * D) // D, tl.program_id(0) % D
        row, column = row * D + phase_y, column * D + phase_x
        wanted = wanted & (row < OH) & (column < OW)
        down, right = (PH + D - phase_y) % D, (PW + D - phase_x) % D
        rows, columns = (KH - down + D - 1) // D, (KW - right + D - 1) // D
        abreast = tl.maximum(columns, 1)  # to divide by
    o = tl.program_id(2) * BN + tl.arange(0, BN)
    origin, top, left = number * (H * W), (row * S - PH + down) // D, (column * S - PW + right) // D
    image = x + client * batch * H * W * C
    kernel = table + client * K * N
    to = client * batch * OH * OW + (number * OH + row) * OW + column
    kept, at = wanted[:, None] & (o[None, :] < N), to[:, None] * N + o[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    if RESIDUAL:
        total = tl.load(residual + at, mask=kept, other=0.0).to(tl.float32)
    if C % BK == 0:  # pieces of a patch are whole: one mask per pixel suffices
        PIECES: tl.constexpr = C // BK
        c = tl.arange(0, BK)
        for step in range(rows * columns * PIECES):
            across, c0 = step // PIECES, (step % PIECES) * BK
            y_, x_ = top + across // abreast, left + across % abreast
            inside = wanted & (y_ >= 0) & (y_ < H) & (x_ >= 0) & (x_ < W)
            place = (origin + y_ * W + x_) * C + c0
            tap = (down + across // abreast * D) * KW + right + across % abreast * D
            a = tl.load(image + place[:, None] + c[None, :], mask=inside[:, None], other=0.0)
            b = tl.load(kernel + (tap * C + c0 + c)[:, None] + (o * K)[None, :], mask=o[None, :] < N, other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
    else:  # rows of a patch are contiguous: all channels of neighboring pixels
        ROWS: tl.constexpr = (KW * C + BK - 1) // BK
        for step in range(rows * ROWS):
            part = step % ROWS * BK + tl.arange(0, BK)
            y_, x_ = top + step // ROWS, left[:, None] + (part // C)[None, :]
            inside = (wanted & (y_ >= 0) & (y_ < H))[:, None] & (part < columns * C)[None, :] & (x_ >= 0) & (x_ < W)
            a = tl.load(image + ((origin + y_ * W + left) * C)[:, None] + part[None, :], mask=inside, other=0.0)
            tap = (down + step // ROWS * D) * KW + right + part // C * D
            there = (part < columns * C)[:, None] & (o[None, :] < N)
            b = tl.load(kernel + (tap * C + part % C)[:, None] + (o * K)[None, :], mask=there, other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=kept)


@triton.jit
def _weights(
    x, g, sums, pixels, share, clients,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, N: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, S: tl.constexpr,
    XC: tl.constexpr, XP: tl.constexpr, GC: tl.constexpr, GP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute sums[part, k, o] = Σ_m patch(x)[m, k]·g[m, o] over the pixels m of a part of one client's batch.

    The sum runs over pixels, and tensor cores need 32-bit factors to be contiguous along the sum. So either factor may
    be stored by channel: XC and XP are the strides of channels and pixels in x, GC and GP those in g.
    """
    client, part = (tl.program_id(1) % clients).to(tl.int64), tl.program_id(1) // clients
    K: tl.constexpr = KH * KW * C
    k0 = tl.program_id(0) * BK
    k = k0 + tl.arange(0, BK)
    o = tl.program_id(2) * BN + tl.arange(0, BN)
    down, right, c = k // C // KW, k // C % KW, k % C
    if C % BK == 0:  # a single tap: one mask per pixel suffices
        tap, c = k0 // C, tl.multiple_of(k0 % C, BK) + tl.arange(0, BK)
    image, slope = x + client * (pixels // (OH * OW) * H * W * C), g + client * pixels * N
    total = tl.zeros((BK, BN), dtype=tl.float32)
    for m0 in range(0, share, BM):
        m = part * share + m0 + tl.arange(0, BM)
        top, left = m // OW % OH * S - PH, m % OW * S - PW
        if C % BK == 0:
            y_, x_ = top + tap // KW, left + tap % KW
            inside = ((m < pixels) & (y_ >= 0) & (y_ < H) & (x_ >= 0) & (x_ < W))[None, :]
            shift = (tap // KW * W + tap % KW) * XP + c * XC
        else:
            y_, x_ = top[None, :] + down[:, None], left[None, :] + right[:, None]
            inside = (m[None, :] < pixels) & (k[:, None] < K) & (y_ >= 0) & (y_ < H) & (x_ >= 0) & (x_ < W)
            shift = c * XC + (down * W + right) * XP
        place = m // (OH * OW) * (C * H * W) + (top * W + left) * XP
        a = tl.load(image + place[None, :] + shift[:, None], mask=inside, other=0.0)
        place = m // (OH * OW) * (N * OH * OW) + m % (OH * OW) * GP
        b = tl.load(
            slope + place[:, None] + (o * GC)[None, :], mask=(m[:, None] < pixels) & (o[None, :] < N), other=0.0
        )
        total = tl.dot(a, b, total, input_precision=PRECISION)
    place = ((part * clients + client) * K + k[:, None]) * N + o[None, :]
    tl.store(sums + place, total, mask=(k[:, None] < K) & (o[None, :] < N))


@triton.jit
def _turn(x, out, area, C: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr):
    """Transpose (image, pixel, channel) to (image, channel, pixel)."""
    start = tl.program_id(0).to(tl.int64) * area * C
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    tile = tl.load(x + start + m[:, None] * C + c[None, :], mask=(m[:, None] < area) & (c[None, :] < C), other=0.0)
    kept = (c[:, None] < C) & (m[None, :] < area)
    tl.store(out + start + c[:, None] * area + m[None, :], tl.trans(tile), mask=kept)


@triton.jit
def _arrange(
    x, out, parts, step, xn, yn,
    A: tl.constexpr, B: tl.constexpr, T: tl.constexpr, XA: tl.constexpr, XB: tl.constexpr, XT: tl.constexpr,
    YA: tl.constexpr, YB: tl.constexpr, YT: tl.constexpr, TURN: tl.constexpr,
    BA: tl.constexpr, BB: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Compute out[a, b, t] = Σ x[a, b, t] over parts, with separate strides; t may be reversed in out."""
    client = tl.program_id(2).to(tl.int64)
    a = (tl.program_id(0) * BA + tl.arange(0, BA))[:, None, None]
    b = (tl.program_id(1) * BB + tl.arange(0, BB))[None, :, None]
    t = tl.arange(0, BT)[None, None, :]
    kept = (a < A) & (b < B) & (t < T)
    source = x + client * xn + a * XA + b * XB + t * XT
    value = tl.load(source, mask=kept, other=0.0)
    for _ in range(1, parts):
        source += step
        value += tl.load(source, mask=kept, other=0.0)
    to = T - 1 - t if TURN else t
    tl.store(out + client * yn + a * YA + b * YB + to * YT, value.to(out.dtype.element_ty), mask=kept)


Pair = tuple[int, int]


def products(
    x: Tensor, table: Tensor, out: Tensor, size: Pair, pad: Pair, stride: int, spread: int, precision: str,
    residual: Tensor | None = None,
) -> None:  # fmt: skip
    """Convolve images x (n·B, C, H, W) to out (n·B, O, H', W'), channels-last, with the table (n, O, kh·kw·C).

    Then add the residual, of the shape of out.

    Both factors are contiguous along the sum, as tensor cores require for 32-bit numbers.
    """
    n, columns, _ = table.shape
    batch, pixels = len(x) // n, len(x) // n * -(-out.shape[2] // spread) * -(-out.shape[3] // spread)
    channels, bn = x.shape[1], max(16, min(128, triton.next_power_of_2(columns)))
    if channels % 16 == 0:
        bm, bk, warps, stages = 128, 16 if channels % 32 else 32, 8 if bn >= 64 else 4, 3
    else:
        bm, bk, warps, stages = 128, 16 if channels * size[1] <= 16 else 32, 4, 2
    grid = (triton.cdiv(pixels, bm) * spread**2, n, triton.cdiv(columns, bn))
    _products[grid](x, table, x if residual is None else residual, out, batch, *x.shape[1:], *out.shape[1:], *size,
                    *pad, stride, spread, residual is not None, bm, bn, bk, precision,
                    num_warps=warps, num_stages=stages)  # fmt: skip


def weight_gradient(x: Tensor, g: Tensor, sums: Tensor, size: Pair, pad: Pair, stride: int, precision: str) -> None:
    """Compute the gradient by the filters from x and g (n·B, …), channels-last; sums (parts, n, kh·kw·C, O)."""
    parts, n, taps, out = sums.shape
    pixels, single = len(g) // n * g.shape[2] * g.shape[3], x.element_size() == 4
    by_channel = single and x.shape[1] >= 16
    bn = max(16, min(256 if by_channel and _roomy(x.device) else 128, triton.next_power_of_2(out)))
    bm, bk, warps = 32 if single else 64, 64 if bn == 128 else 128, 8 if bn == 256 else 4
    if single and not by_channel:
        bk, warps = 16, max(1, bn // 32)
    elif taps < 128:
        bk = 32
    far = [1, x.shape[1], 1, out]  # strides of channels and pixels in x, then in g
    if by_channel and stride == 1:  # otherwise the needed pixels of x are not contiguous
        x, far[:2] = _turned(x), [x.shape[2] * x.shape[3], 1]
    if by_channel:
        g, far[2:] = _turned(g), [g.shape[2] * g.shape[3], 1]
    share = triton.cdiv(triton.cdiv(pixels, parts), bm) * bm
    grid = (triton.cdiv(taps, bk), n * parts, triton.cdiv(out, bn))
    _weights[grid](x, g, sums, pixels, share, n, *x.shape[1:], *g.shape[1:], *size, *pad, stride, *far,
                   bm, bn, bk, precision, num_warps=warps, num_stages=3)  # fmt: skip


def _turned(x: Tensor) -> Tensor:
    """Convert channels-last images to contiguous channels."""
    images, channels, height, width = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    bc = min(64, triton.next_power_of_2(channels))
    grid = (images, triton.cdiv(height * width, 256), triton.cdiv(channels, bc))
    _turn[grid](x, out, height * width, channels, 256, bc, num_warps=4)
    return out


def arrange(x: Tensor, out: Tensor, turn: bool = False) -> None:
    """Sum (parts, n, a, b, t) over parts into (n, a, b, t), with any strides."""
    sizes = x.shape[2:]
    blocks = [min(16, triton.next_power_of_2(size)) for size in sizes[:2]] + [triton.next_power_of_2(sizes[2])]
    grid = (triton.cdiv(sizes[0], blocks[0]), triton.cdiv(sizes[1], blocks[1]), x.shape[1])
    _arrange[grid](x, out, len(x), x.stride(0), x.stride(1), out.stride(0), *sizes, *x.stride()[2:], *out.stride()[1:],
                   turn, *blocks, num_warps=4)  # fmt: skip


@functools.cache
def _roomy(device: torch.device) -> bool:
    """Return whether large tiles fit into shared memory, as on data-center GPUs; others have 100 kB per block."""
    if device.type == "cpu":
        return True
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0) > 150_000
