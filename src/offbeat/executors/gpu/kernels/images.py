"""Pooling and GroupNorm with separate weights and biases per client."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _pool(
    x, bias, out, where, pixels,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute out[m, c] = max(0, bias[c] + largest of the four x at m); where is its index, or 4 if out is zero."""
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
        larger = (other > best) | (other != other)  # NaN propagates
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
    """Write g to the position of each maximum and zero to the other three; sums[part, c] = Σ g over a part's pixels."""
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
    """Return for every channel the sum over its group of D channels."""
    sums = tl.sum(tl.reshape(values, (BC // D, D)), axis=1)
    return tl.reshape(tl.broadcast_to(sums[:, None], (BC // D, D)), (BC,))


@triton.jit
def _tile(weight, bias, batch, stride, BM: tl.constexpr, BC: tl.constexpr):
    """Return the image, the channels and the pixels of a tile, and the client's weight and bias of these channels."""
    image, client = tl.program_id(0).to(tl.int64), (tl.program_id(0) // batch).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    w, b = tl.load(weight + client * stride + c), tl.load(bias + client * stride + c)
    return image, c, tl.arange(0, BM), w, b


@triton.jit
def _normalize(
    x, weight, bias, out, means, scales, batch, stride, eps,
    C: tl.constexpr, P: tl.constexpr, D: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Normalize some channels of one image with P pixels, in groups of D channels."""
    image, c, m, w, b = _tile(weight, bias, batch, stride, BM, BC)
    place, inside = (image * P + m[:, None]) * C + c[None, :], (m < P)[:, None]
    a = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)  # the whole image, if it fits
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
    """Return the gradient behind the ReLU, and the normalized input by which the weight is multiplied."""
    slope = tl.load(g + place, mask=inside, other=0.0).to(tl.float32)
    normal = (tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
    if RELU:
        slope = tl.where(normal * w[None, :] + b[None, :] <= 0, 0.0, slope)
    return slope, normal


@triton.jit
def _normalize_back(
    g, x, weight, bias, means, scales, out, shares, batch, stride,
    C: tl.constexpr, P: tl.constexpr, D: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute the gradient by the image, and the contributions of the image to those by weight and bias."""
    image, c, m, w, b = _tile(weight, bias, batch, stride, BM, BC)
    mean, scale = tl.load(means + image * C + c), tl.load(scales + image * C + c)
    place, inside = (image * P + m[:, None]) * C + c[None, :], (m < P)[:, None]
    slope, normal = _slopes(g, x, place, inside, w, b, mean, scale, RELU)  # of the whole image, if it fits
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


Pair = tuple[int, int]


def pool(x: Tensor, bias: Tensor, out: Tensor, where: Tensor) -> None:
    """Pool images x (n·B, C, H, W) to out (n·B, C, H/2, W/2), channels-last; bias (n, C)."""
    n, channels = bias.shape
    pixels, bc = len(x) // n * out.shape[2] * out.shape[3], min(64, triton.next_power_of_2(channels))
    grid = (triton.cdiv(pixels, 64), n, triton.cdiv(channels, bc))
    _pool[grid](x, bias, out, where, pixels, *x.shape[1:], 64, bc, num_warps=4)


def unpool(g: Tensor, where: Tensor, out: Tensor, sums: Tensor) -> None:
    """Compute the gradient of `pool`: g (n·B, C, H/2, W/2) to out (n·B, C, H, W), channels-last; sums (parts, n, C)."""
    (parts, n, channels), bm = sums.shape, 32
    pixels, bc = len(g) // n * g.shape[2] * g.shape[3], min(64, triton.next_power_of_2(channels))
    share = triton.cdiv(triton.cdiv(pixels, parts), bm) * bm
    _unpool[(triton.cdiv(channels, bc), n * parts)](g, where, out, sums, pixels, share, n, *out.shape[1:], bm, bc,
                                                    num_warps=4)  # fmt: skip


def normalize(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, means: Tensor, scales: Tensor,
    groups: int, eps: float, relu: bool,
) -> None:  # fmt: skip
    """Normalize images x (n·B, C, H, W) to out, channels-last.

    Weight and bias are (n, C) with equal strides; means and scales are (n·B, C).
    """
    grid, batch, sizes, blocks, warps = _by_image(x, weight, groups, 1 << 15)
    _normalize[grid](x, weight, bias, out, means, scales, batch, weight.stride(0), eps, *sizes, relu, *blocks,
                     num_warps=warps)  # fmt: skip


def normalize_back(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, means: Tensor, scales: Tensor,
    out: Tensor, shares: Tensor, groups: int, relu: bool,
) -> None:  # fmt: skip
    """Compute the gradient of `normalize`; each image's contributions by weight and bias go to shares (n·B, 2, C)."""
    grid, batch, sizes, blocks, warps = _by_image(x, weight, groups, 1 << 14)
    _normalize_back[grid](g, x, weight, bias, means, scales, out, shares, batch, weight.stride(0), *sizes, relu,
                          *blocks, num_warps=warps)  # fmt: skip


def _by_image(x: Tensor, weight: Tensor, groups: int, most: int) -> tuple[Pair, int, tuple[int, int, int], Pair, int]:
    """Return the grid, the images per client, (C, P, D), the size of a tile of up to `most` numbers, and its warps."""
    (images, channels, height, width), each = x.shape, x.shape[1] // groups
    pixels = triton.next_power_of_2(height * width)
    bc = max(each, min(32, channels, max(16, most // pixels)))
    bm = min(max(1, most // bc), pixels)
    warps = min(16, max(1, bm * bc // 2048))
    return (images, channels // bc), images // len(weight), (channels, height * width, each), (bm, bc), warps
