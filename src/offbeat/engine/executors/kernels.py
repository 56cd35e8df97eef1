"""The tiles of `convolution`, in Triton.  Capitals are sizes, as in its documentation; those in the signature's second
line are known when the kernel is compiled."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _products(
    x, table, out, batch,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, N: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, S: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[m, o] = Σ_k patch(x)[m, k]·table[o, k] for a tile of one client's pixels m = (image, row, column).

    A patch begins at S times the pixel's place, less the padding; x is spread out by D, with zeros between.  Pixels of
    one tile are D apart, so that those zeros meet the same places of a kernel for all of them, which are left out.
    """
    client = tl.program_id(1).to(tl.int64)
    K: tl.constexpr = KH * KW * C
    PIXELS_H: tl.constexpr = (OH + D - 1) // D
    PIXELS_W: tl.constexpr = (OW + D - 1) // D
    m = tl.program_id(0) // (D * D) * BM + tl.arange(0, BM)
    number, row, column = m // (PIXELS_H * PIXELS_W), m // PIXELS_W % PIXELS_H, m % PIXELS_W
    wanted = number < batch
    if D == 1:  # all places of a kernel, from the first
        down, right, rows, columns = 0, 0, KH, KW
    else:
        phase_y, phase_x = tl.program_id(0) % (D * D) // D, tl.program_id(0) % D
        row, column = row * D + phase_y, column * D + phase_x
        wanted = wanted & (row < OH) & (column < OW)
        down, right = (PH + D - phase_y) % D, (PW + D - phase_x) % D
        rows, columns = (KH - down + D - 1) // D, (KW - right + D - 1) // D
    o = tl.program_id(2) * BN + tl.arange(0, BN)
    origin, top, left = number * (H * W), (row * S - PH + down) // D, (column * S - PW + right) // D
    image = x + client * batch * H * W * C
    kernel = table + client * K * N
    total = tl.zeros((BM, BN), dtype=tl.float32)
    if C % BK == 0:  # the pieces of a patch are whole: a mask for each pixel will do
        PIECES: tl.constexpr = C // BK
        c = tl.arange(0, BK)
        for step in range(rows * columns * PIECES):
            across, c0 = step // PIECES, (step % PIECES) * BK
            y_, x_ = top + across // columns, left + across % columns
            inside = wanted & (y_ >= 0) & (y_ < H) & (x_ >= 0) & (x_ < W)
            place = (origin + y_ * W + x_) * C + c0
            tap = (down + across // columns * D) * KW + right + across % columns * D
            a = tl.load(image + place[:, None] + c[None, :], mask=inside[:, None], other=0.0)
            b = tl.load(kernel + (tap * C + c0 + c)[:, None] + (o * K)[None, :], mask=o[None, :] < N, other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
    else:  # so are the rows of a patch, all channels of some pixels side by side
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
    place = client * batch * OH * OW + (number * OH + row) * OW + column
    kept = wanted[:, None] & (o[None, :] < N)
    tl.store(out + place[:, None] * N + o[None, :], total.to(out.dtype.element_ty), mask=kept)


@triton.jit
def _weights(
    x, g, sums, pixels, share, clients,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, N: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, S: tl.constexpr,
    XC: tl.constexpr, XP: tl.constexpr, GC: tl.constexpr, GP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """sums[part, k, o] = Σ_m patch(x)[m, k]·g[m, o] over the pixels m of a part of one client's batch.

    The sum runs over pixels, and tensor cores take 32-bit factors only with the terms of a sum side by side.  So either
    factor may lie by channel: XC and XP are how far apart channels and pixels of x are, GC and GP those of g.
    """
    client, part = (tl.program_id(1) % clients).to(tl.int64), tl.program_id(1) // clients
    K: tl.constexpr = KH * KW * C
    k0 = tl.program_id(0) * BK
    k = k0 + tl.arange(0, BK)
    o = tl.program_id(2) * BN + tl.arange(0, BN)
    down, right, c = k // C // KW, k // C % KW, k % C
    if C % BK == 0:  # one place in the kernel: a mask for each pixel will do
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
def _depthwise(
    x, table, out, pixels,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, S: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """out[m, c] = Σ_tap x[m + tap, c]·table[tap, c] for a tile of one client's pixels: each channel by itself."""
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
    """sums[part, tap, c] = Σ_m x[m + tap, c]·g[m, c] over the pixels m of a part of one client's batch."""
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


@triton.jit
def _pool(
    x, bias, out, where, pixels,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """out[m, c] = max(0, bias[c] + the largest of the four x under m); where: 0 to 3 for which of them, 4 for none."""
    client = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    kept = (m < pixels)[:, None] & (c < C)[None, :]
    place = (m // (W // 2) * (2 * W) + m % (W // 2) * 2) * C
    image = x + client * (4 * pixels) * C + place[:, None] + c[None, :]
    best = tl.load(image, mask=kept, other=0.0)
    which = tl.zeros((BM, BC), dtype=tl.uint8)
    for corner in tl.static_range(1, 4):
        other = tl.load(image + (corner // 2 * W + corner % 2) * C, mask=kept, other=0.0)
        larger = (other > best) | (other != other)  # what is not a number stays so
        best, which = tl.where(larger, other, best), tl.where(larger, corner, which).to(tl.uint8)
    value = best.to(tl.float32) + tl.load(bias + client * C + c, mask=c < C, other=0.0)[None, :]
    which = tl.where(value <= 0, 4, which).to(tl.uint8)
    place = (client * pixels + m[:, None]) * C + c[None, :]
    tl.store(out + place, tl.where(value <= 0, 0.0, value).to(out.dtype.element_ty), mask=kept)
    tl.store(where + place, which, mask=kept)


@triton.jit
def _unpool(
    g, where, out, sums, pixels, share, clients,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """g at the place where each maximum was, and zero at the three others; sums[part, c] = Σ g over a part's pixels."""
    client, part = (tl.program_id(1) % clients).to(tl.int64), tl.program_id(1) // clients
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    total = tl.zeros((BM, BC), dtype=tl.float32)
    for m0 in range(0, share, BM):
        m = part * share + m0 + tl.arange(0, BM)
        kept = (m < pixels)[:, None] & (c < C)[None, :]
        place = (client * pixels + m[:, None]) * C + c[None, :]
        which = tl.load(where + place, mask=kept, other=4)
        slope = tl.load(g + place, mask=kept, other=0.0)
        place = (m // (W // 2) * (2 * W) + m % (W // 2) * 2) * C
        image = out + client * (4 * pixels) * C + place[:, None] + c[None, :]
        for corner in tl.static_range(4):
            value = tl.where(which == corner, slope, 0.0)
            tl.store(image + (corner // 2 * W + corner % 2) * C, value.to(out.dtype.element_ty), mask=kept)
        total += tl.where(which < 4, slope, 0.0).to(tl.float32)
    tl.store(sums + (part * clients + client) * C + c, tl.sum(total, axis=0), mask=c < C)


@triton.jit
def _over_groups(values, D: tl.constexpr, BC: tl.constexpr):
    """The sum over each D channels, for every one of them."""
    sums = tl.sum(tl.reshape(values, (BC // D, D)), axis=1)
    return tl.reshape(tl.broadcast_to(sums[:, None], (BC // D, D)), (BC,))


@triton.jit
def _normalise(
    x, weight, bias, out, means, scales, batch, stride, eps,
    C: tl.constexpr, P: tl.constexpr, D: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """GroupNorm of some channels of one image with P pixels, in groups of D; each client has its weight and bias."""
    image, client = tl.program_id(0).to(tl.int64), (tl.program_id(0) // batch).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    m = tl.arange(0, BM)
    w, b = tl.load(weight + client * stride + c), tl.load(bias + client * stride + c)
    place, inside = (image * P + m[:, None]) * C + c[None, :], (m < P)[:, None]
    a = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)  # the whole image, where it fits
    total = a
    for m0 in range(BM, P, BM):
        total += tl.load(x + place + m0 * C, mask=(m + m0 < P)[:, None], other=0.0).to(tl.float32)
    mean = _over_groups(tl.sum(total, axis=0), D, BC) / (P * D)
    off = tl.where(inside, a - mean[None, :], 0.0)
    total = off * off
    for m0 in range(BM, P, BM):
        far = tl.load(x + place + m0 * C, mask=(m + m0 < P)[:, None], other=0.0).to(tl.float32) - mean[None, :]
        far = tl.where((m + m0 < P)[:, None], far, 0.0)
        total += far * far
    scale = 1.0 / tl.sqrt(_over_groups(tl.sum(total, axis=0), D, BC) / (P * D) + eps)
    y = off * (scale * w)[None, :] + b[None, :]
    if RELU:
        y = tl.where(y <= 0, 0.0, y)
    tl.store(out + place, y.to(out.dtype.element_ty), mask=inside)
    for m0 in range(BM, P, BM):
        a = tl.load(x + place + m0 * C, mask=(m + m0 < P)[:, None], other=0.0).to(tl.float32)
        y = (a - mean[None, :]) * (scale * w)[None, :] + b[None, :]
        if RELU:
            y = tl.where(y <= 0, 0.0, y)
        tl.store(out + place + m0 * C, y.to(out.dtype.element_ty), mask=(m + m0 < P)[:, None])
    tl.store(means + image * C + c, mean)
    tl.store(scales + image * C + c, scale)


@triton.jit
def _slopes(g, x, place, inside, w, b, mean, scale, RELU: tl.constexpr):
    """The gradient behind a ReLU, and what it multiplied."""
    slope = tl.load(g + place, mask=inside, other=0.0).to(tl.float32)
    normal = (tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
    if RELU:
        slope = tl.where(normal * w[None, :] + b[None, :] <= 0, 0.0, slope)
    return slope, normal


@triton.jit
def _normalise_back(
    g, x, weight, bias, means, scales, out, shares, batch, stride,
    C: tl.constexpr, P: tl.constexpr, D: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The gradient by the image, and this image's shares of those by weight and bias."""
    image, client = tl.program_id(0).to(tl.int64), (tl.program_id(0) // batch).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    m = tl.arange(0, BM)
    w, b = tl.load(weight + client * stride + c), tl.load(bias + client * stride + c)
    mean, scale = tl.load(means + image * C + c), tl.load(scales + image * C + c)
    place, inside = (image * P + m[:, None]) * C + c[None, :], (m < P)[:, None]
    slope, normal = _slopes(g, x, place, inside, w, b, mean, scale, RELU)  # of the whole image, where it fits
    plain, weighted = slope, slope * normal
    for m0 in range(BM, P, BM):
        far, value = _slopes(g, x, place + m0 * C, (m + m0 < P)[:, None], w, b, mean, scale, RELU)
        plain += far
        weighted += far * value
    by_b, by_w = tl.sum(plain, axis=0), tl.sum(weighted, axis=0)
    tl.store(shares + image * 2 * C + c, by_w)
    tl.store(shares + image * 2 * C + C + c, by_b)
    shift, tilt = _over_groups(by_b * w, D, BC) / (P * D), _over_groups(by_w * w, D, BC) / (P * D)
    by_x = scale[None, :] * (slope * w[None, :] - shift[None, :] - normal * tilt[None, :])
    tl.store(out + place, by_x.to(out.dtype.element_ty), mask=inside)
    for m0 in range(BM, P, BM):
        far, value = _slopes(g, x, place + m0 * C, (m + m0 < P)[:, None], w, b, mean, scale, RELU)
        by_x = scale[None, :] * (far * w[None, :] - shift[None, :] - value * tilt[None, :])
        tl.store(out + place + m0 * C, by_x.to(out.dtype.element_ty), mask=(m + m0 < P)[:, None])


@triton.jit
def _arrange(
    x, out, parts, step, xn, yn,
    A: tl.constexpr, B: tl.constexpr, T: tl.constexpr, XA: tl.constexpr, XB: tl.constexpr, XT: tl.constexpr,
    YA: tl.constexpr, YB: tl.constexpr, YT: tl.constexpr, TURN: tl.constexpr,
    BA: tl.constexpr, BB: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """out[a, b, t] = Σ x[a, b, t] over parts, each by its own strides; in out t may count backwards."""
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


@triton.jit
def _keep(new, old, on, width, stride, BLOCK: tl.constexpr):
    """old[row] = new[row] where that is wanted."""
    row = tl.program_id(1).to(tl.int64)
    if tl.load(on + row):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(old + row * stride + place, tl.load(new + row * width + place, mask=place < width), mask=place < width)


@triton.jit
def _descend(y, g, lr, on, width, y_stride, g_stride, decay, BLOCK: tl.constexpr):
    """y[row] −= lr[row]·(g[row] + decay·y[row]) where that is wanted."""
    row = tl.program_id(1).to(tl.int64)
    if tl.load(on + row):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        old = tl.load(y + row * y_stride + place, mask=place < width)
        slope = tl.load(g + row * g_stride + place, mask=place < width) + decay * old
        tl.store(y + row * y_stride + place, old - tl.load(lr + row) * slope, mask=place < width)


@triton.jit
def _turn(x, out, area, C: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr):
    """(image, pixel, channel) → (image, channel, pixel)."""
    start = tl.program_id(0).to(tl.int64) * area * C
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    tile = tl.load(x + start + m[:, None] * C + c[None, :], mask=(m[:, None] < area) & (c[None, :] < C), other=0.0)
    kept = (c[:, None] < C) & (m[None, :] < area)
    tl.store(out + start + c[:, None] * area + m[None, :], tl.trans(tile), mask=kept)


Pair = tuple[int, int]


def products(
    x: Tensor, table: Tensor, out: Tensor, size: Pair, pad: Pair, stride: int, spread: int, precision: str
) -> None:
    """Images (n·B, C, H, W) and out (n·B, O, H', W'), both channels-last; table (n, O, kh·kw·C), kernels of a `size`.

    Both factors have what is summed over side by side, as the tensor cores want 32-bit numbers.
    """
    n, columns, _ = table.shape
    batch, pixels = len(x) // n, len(x) // n * -(-out.shape[2] // spread) * -(-out.shape[3] // spread)
    channels, bn = x.shape[1], max(16, min(128, triton.next_power_of_2(columns)))
    if channels % 16 == 0:
        bm, bk, warps, stages = 128, 16 if channels % 32 else 32, 8 if bn >= 64 else 4, 3
    else:
        bm, bk, warps, stages = 128, 16 if channels * size[1] <= 16 else 32, 4, 2
    grid = (triton.cdiv(pixels, bm) * spread**2, n, triton.cdiv(columns, bn))
    _products[grid](x, table, out, batch, *x.shape[1:], *out.shape[1:], *size, *pad, stride, spread,
                    bm, bn, bk, precision, num_warps=warps, num_stages=stages)  # fmt: skip


def weight_gradient(x: Tensor, g: Tensor, sums: Tensor, size: Pair, pad: Pair, stride: int, precision: str) -> None:
    """Images and slopes (n·B, channels, H, W), channels-last; sums (parts, n, kh·kw·C, O)."""
    parts, n, taps, out = sums.shape
    pixels, turns = len(g) // n * g.shape[2] * g.shape[3], x.element_size() == 4 and x.shape[1] >= 16
    bn = max(16, min(256 if turns else 128, triton.next_power_of_2(out)))
    bm, bk, warps = 64, 64 if bn == 128 else 128, 8 if bn == 256 else 4
    if taps < 128:
        bk = 32
    if x.element_size() == 4:
        bm = 32
        if not turns:
            bk, warps = 16, max(1, bn // 32)
    if turns:  # with a stride the pixels of x that are wanted would not be side by side
        x, g = _turned(x) if stride == 1 else x, _turned(g)
    share = triton.cdiv(triton.cdiv(pixels, parts), bm) * bm
    grid = (triton.cdiv(taps, bk), n * parts, triton.cdiv(out, bn))
    _weights[grid](x, g, sums, pixels, share, n, *x.shape[1:], *g.shape[1:], *size, *pad, stride,
                   x.stride(1), x.stride(3), g.stride(1), g.stride(3), bm, bn, bk, precision,
                   num_warps=warps, num_stages=3)  # fmt: skip


def depthwise(x: Tensor, table: Tensor, out: Tensor, size: Pair, pad: Pair, stride: int, spread: int) -> None:
    """Images and out (n·B, C, H, W), channels-last; table (n, kh·kw, C)."""
    n, channels = len(table), x.shape[1]
    pixels = len(x) // n * out.shape[2] * out.shape[3]
    bc = min(64, triton.next_power_of_2(channels))
    grid = (triton.cdiv(pixels, 64), n, triton.cdiv(channels, bc))
    _depthwise[grid](x, table, out, pixels, *x.shape[1:], *out.shape[2:], *size, *pad, stride, spread, 64, bc,
                     num_warps=4)  # fmt: skip


def depthwise_weight_gradient(x: Tensor, g: Tensor, sums: Tensor, size: Pair, pad: Pair, stride: int) -> None:
    """Images and slopes (n·B, C, H, W), channels-last; sums (parts, n, kh·kw, C)."""
    (parts, n, taps, channels), bm = sums.shape, 32
    pixels, bc = len(g) // n * g.shape[2] * g.shape[3], min(64, triton.next_power_of_2(channels))
    share = triton.cdiv(triton.cdiv(pixels, parts), bm) * bm
    grid = (taps, n * parts, triton.cdiv(channels, bc))
    _depthwise_weights[grid](x, g, sums, pixels, share, n, *x.shape[1:], *g.shape[2:], *size, *pad, stride, bm, bc,
                             num_warps=4)  # fmt: skip


def pool(x: Tensor, bias: Tensor, out: Tensor, where: Tensor) -> None:
    """Images (n·B, C, H, W) and half as high and wide, channels-last; bias (n, C)."""
    n, channels = bias.shape
    pixels, bc = len(x) // n * out.shape[2] * out.shape[3], min(64, triton.next_power_of_2(channels))
    grid = (triton.cdiv(pixels, 64), n, triton.cdiv(channels, bc))
    _pool[grid](x, bias, out, where, pixels, *x.shape[1:], 64, bc, num_warps=4)


def unpool(g: Tensor, where: Tensor, out: Tensor, sums: Tensor) -> None:
    """Slopes half as high and wide as out, channels-last; sums (parts, n, C)."""
    (parts, n, channels), bm = sums.shape, 32
    pixels, bc = len(g) // n * g.shape[2] * g.shape[3], min(64, triton.next_power_of_2(channels))
    share = triton.cdiv(triton.cdiv(pixels, parts), bm) * bm
    _unpool[(triton.cdiv(channels, bc), n * parts)](g, where, out, sums, pixels, share, n, *out.shape[1:], bm, bc,
                                                    num_warps=4)  # fmt: skip


def normalise(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, means: Tensor, scales: Tensor,
    groups: int, eps: float, relu: bool,
) -> None:  # fmt: skip
    """Images (n·B, C, H, W) and out, channels-last; weight and bias (n, C), rows equally far apart; means and scales
    (n·B, C)."""
    grid, batch, sizes, blocks, warps = _by_image(x, weight, groups, 1 << 15)
    _normalise[grid](x, weight, bias, out, means, scales, batch, weight.stride(0), eps, *sizes, relu, *blocks,
                     num_warps=warps)  # fmt: skip


def normalise_back(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, means: Tensor, scales: Tensor,
    out: Tensor, shares: Tensor, groups: int, relu: bool,
) -> None:  # fmt: skip
    """Everything as above; what each image adds to the gradients by weight and bias goes to shares (n·B, 2, C)."""
    grid, batch, sizes, blocks, warps = _by_image(x, weight, groups, 1 << 14)
    _normalise_back[grid](g, x, weight, bias, means, scales, out, shares, batch, weight.stride(0), *sizes, relu,
                          *blocks, num_warps=warps)  # fmt: skip


def _by_image(x: Tensor, weight: Tensor, groups: int, most: int) -> tuple[Pair, int, tuple[int, int, int], Pair, int]:
    """Grid, images a client; C, P and D; the size of a tile of at most so many numbers, and threads for it in 32s."""
    (images, channels, height, width), each = x.shape, x.shape[1] // groups
    pixels = triton.next_power_of_2(height * width)
    bc = max(each, min(32, channels, max(16, most // pixels)))
    bm = min(max(1, most // bc), pixels)
    warps = min(16, max(1, bm * bc // 2048))
    return (images, channels // bc), images // len(weight), (channels, height * width, each), (bm, bc), warps


def arrange(x: Tensor, out: Tensor, turn: bool = False) -> None:
    """The sum over parts of (parts, n, a, b, t) into (n, a, b, t), both lying in memory as they like."""
    sizes = x.shape[2:]
    blocks = [min(16, triton.next_power_of_2(size)) for size in sizes[:2]] + [triton.next_power_of_2(sizes[2])]
    grid = (triton.cdiv(sizes[0], blocks[0]), triton.cdiv(sizes[1], blocks[1]), x.shape[1])
    _arrange[grid](x, out, len(x), x.stride(0), x.stride(1), out.stride(0), *sizes, *x.stride()[2:], *out.stride()[1:],
                   turn, *blocks, num_warps=4)  # fmt: skip


def keep(new: Tensor, old: Tensor, on: Tensor) -> None:
    """(rows, d), or what can be spread to it, into (rows, d), for the rows that are on (rows, 1)."""
    rows, width = old.shape
    new = new.expand_as(old).contiguous()
    _keep[(triton.cdiv(width, 4096), rows)](new, old, on, width, old.stride(0), 4096, num_warps=8)


def descend(y: Tensor, g: Tensor, lr: Tensor, on: Tensor, decay: float) -> None:
    """A plain step of (rows, …), each row whole in memory, along (rows, …), for the rows that are on (rows, 1)."""
    rows, width = len(g), g[0].numel()
    g = g if g[0].is_contiguous() else g.contiguous()
    block = min(4096, triton.next_power_of_2(width))
    grid = (triton.cdiv(width, block), rows)
    _descend[grid](y, g, lr, on, width, y.stride(0), g.stride(0), decay, block, num_warps=8 if block > 1024 else 4)


def _turned(x: Tensor) -> Tensor:
    """Channels-last images, contiguous by channel."""
    images, channels, height, width = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    bc = min(64, triton.next_power_of_2(channels))
    grid = (images, triton.cdiv(height * width, 256), triton.cdiv(channels, bc))
    _turn[grid](x, out, height * width, channels, 256, bc, num_warps=4)
    return out
