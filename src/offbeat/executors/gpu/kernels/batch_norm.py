"""BatchNorm with separate statistics, weights and biases per client, and the activation before or after it.

Images are channels-last: a client has `rows` rows of C numbers, of which the first ones belong to valid examples. The
input of the normalization is a = GELU(x + shift), or x + shift, or x. A GELU is computed once and kept: it takes longer
than to read it again. Kernels that follow each other pass over memory in opposite directions, so that the second one
finds what the first one read last in the cache.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from offbeat.executors.gpu.kernels.tiles import existing, total

# Φ(z) as in Abramowitz and Stegun, *Handbook of Mathematical Functions*, 7.1.26, of which the error is below 1e-7. It
# takes a quarter of the instructions of erf, and has the density of the normal distribution on its way.
HALF_ROOT = tl.constexpr(0.7071067811865476)  # 1/√2
DENSITY = tl.constexpr(0.3989422804014327)  # 1/√(2π)


@triton.jit
def _normal(z):
    """Return the distribution Φ(z) and the density φ(z) of the normal distribution."""
    u = tl.abs(z) * HALF_ROOT
    e = tl.exp(-u * u)
    t = 1.0 / (1.0 + 0.3275911 * u)
    tail = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)))) * e
    return tl.where(z >= 0, 1.0 - tail, tail), DENSITY * e


@triton.jit
def _input(x, inside, shift, GELU: tl.constexpr):
    """Return a and da/dz for z = x + shift."""
    z = tl.load(x, mask=inside, other=0.0).to(tl.float32) + shift[None, :]
    a, slope = z, z
    if GELU:
        below, density = _normal(z)
        a, slope = z * below, below + z * density
    return a, slope


@triton.jit
def _place(shift, stride, parts, clients, C: tl.constexpr, SHIFT: tl.constexpr, BACK: tl.constexpr, BC: tl.constexpr):
    """Return the client and the part of a program, in descending order if BACK is set, its channels and their shift."""
    part, client = tl.program_id(1), tl.program_id(2)
    if BACK:
        part, client = parts - 1 - part, clients - 1 - client
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    s = tl.zeros((BC,), dtype=tl.float32)
    if SHIFT:
        s = tl.load(shift + client * stride + c, mask=c < C, other=0.0)
    return client.to(tl.int64), part, c, s


@triton.jit
def _moments(
    x, shift, valid, sums, kept, shift_stride, rows, share, parts, clients, P,
    C: tl.constexpr, SHIFT: tl.constexpr, GELU: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute sums[part, client] = Σ(a − o), Σ(a − o)² over a part's valid rows; o is the client's first row.

    A GELU is written to kept.
    """
    client, part, c, s = _place(shift, shift_stride, parts, clients, C, SHIFT, True, BC)
    limit = tl.load(valid + client).to(tl.int32) * P
    x += client * rows * C
    kept += client * rows * C
    start = tl.arange(0, 1)
    origin, _ = _input(x + c[None, :], existing(start < 1, c, C, BC), s, GELU)
    total, squares = tl.zeros((BM, BC), dtype=tl.float32), tl.zeros((BM, BC), dtype=tl.float32)
    for first in range(part * share, tl.minimum(part * share + share, limit), BM):
        m = first + tl.arange(0, BM)
        place, inside = m[:, None] * C + c[None, :], existing(m < limit, c, C, BC)
        a, inner = _input(x + place, inside, s, GELU)
        if GELU:
            rounded = a.to(kept.dtype.element_ty)
            tl.store(kept + place, rounded, mask=inside)
            a = rounded.to(tl.float32)
        off = tl.where((m < limit)[:, None], a - origin, 0.0)
        total += off
        squares += off * off
    out = sums + (part * clients + client) * 2 * C + c
    tl.store(out, tl.sum(total, axis=0), mask=c < C)
    tl.store(out + C, tl.sum(squares, axis=0), mask=c < C)


@triton.jit
def _statistics(
    x, shift, valid, sums, mean, scale, running_mean, running_var, batches,
    shift_stride, mean_stride, var_stride, batches_stride, momentum, eps, rows, parts, clients, P,
    C: tl.constexpr, SHIFT: tl.constexpr, GELU: tl.constexpr, TRACK: tl.constexpr, COUNT: tl.constexpr,
    PARTS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute each client's mean and 1/deviation from the sums, and move its running statistics."""
    client, one, c, s = _place(shift, shift_stride, 1, clients, C, SHIFT, False, BC)
    count = (tl.load(valid + client).to(tl.int32) * P).to(tl.float32)
    start, part = tl.arange(0, 1), tl.arange(0, PARTS)
    origin, _ = _input(x + client * rows * C + c[None, :], existing(start < 1, c, C, BC), s, GELU)
    place = sums + (part[:, None] * clients + client) * 2 * C + c[None, :]
    inside = (part < parts)[:, None] & (c < C)[None, :]
    n = tl.maximum(count, 1.0)
    off = tl.sum(tl.load(place, mask=inside, other=0.0), axis=0) / n
    square = tl.sum(tl.load(place + C, mask=inside, other=0.0), axis=0) / n
    variance = tl.maximum(square - off * off, 0.0)
    average = tl.sum(origin, axis=0) + off
    tl.store(mean + client * C + c, average, mask=c < C)
    tl.store(scale + client * C + c, 1.0 / tl.sqrt(variance + eps), mask=c < C)
    moves = c < tl.where(count > 0, C, 0)
    if TRACK:
        at = running_mean + client * mean_stride + c
        old = tl.load(at, mask=moves, other=0.0)
        tl.store(at, old + momentum * (average - old), mask=moves)
        at = running_var + client * var_stride + c
        old = tl.load(at, mask=moves, other=0.0)
        unbiased = variance * n / tl.maximum(n - 1.0, 1.0)
        tl.store(at, old + momentum * (unbiased - old), mask=moves)
    if COUNT:
        first = start < tl.where(tl.program_id(0) == 0, 1, 0)
        at = batches + client * batches_stride + start
        tl.store(at, tl.load(at, mask=first, other=0.0) + tl.where(count > 0, 1.0, 0.0), mask=first)


@triton.jit
def _parameters(mean, scale, weight, bias, stride, client, c, C: tl.constexpr):
    """Return a client's mean, 1/deviation, weight and bias of some channels."""
    place = client * C + c
    m, r = tl.load(mean + place, mask=c < C, other=0.0), tl.load(scale + place, mask=c < C, other=0.0)
    w = tl.load(weight + client * stride + c, mask=c < C, other=0.0)
    return m, r, w, tl.load(bias + client * stride + c, mask=c < C, other=0.0)


@triton.jit
def _normalize(
    x, shift, valid, mean, scale, weight, bias, residual, out, shift_stride, stride, rows, share, parts, clients, P,
    C: tl.constexpr, SHIFT: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute out = weight·(a − mean)·scale + bias (+ residual), and a ReLU of it; rows of padding become 0."""
    client, part, c, s = _place(shift, shift_stride, parts, clients, C, SHIFT, False, BC)
    limit = tl.load(valid + client).to(tl.int32) * P
    average, r, w, b = _parameters(mean, scale, weight, bias, stride, client, c, C)
    x += client * rows * C
    residual += client * rows * C
    out += client * rows * C
    for first in range(part * share, tl.minimum(part * share + share, rows), BM):
        m = first + tl.arange(0, BM)
        place, here = m[:, None] * C + c[None, :], existing(m < rows, c, C, BC)
        a, inner = _input(x + place, existing(m < limit, c, C, BC), s, False)
        y = (a - average[None, :]) * (r * w)[None, :] + b[None, :]
        if RESIDUAL:
            y += tl.load(residual + place, mask=here, other=0.0).to(tl.float32)
        if RELU:
            y = tl.where(y <= 0, 0.0, y)
        y = tl.where((m < limit)[:, None], y, 0.0)
        tl.store(out + place, y.to(out.dtype.element_ty), mask=here)


@triton.jit
def _slopes(
    g, x, place, inside, s, average, r, w, b, GELU: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Return da/dz, the normalized input and the gradient behind the ReLU, which is zero for padding."""
    a, inner = _input(x + place, inside, s, GELU)
    normal = (a - average[None, :]) * r[None, :]
    slope = tl.load(g + place, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        slope = tl.where(normal * w[None, :] + b[None, :] <= 0, 0.0, slope)
    return inner, normal, slope


@triton.jit
def _back_sums(
    g, x, shift, valid, mean, scale, weight, bias, y, passed, sums, shift_stride, stride,
    rows, share, parts, clients, P,
    C: tl.constexpr, SHIFT: tl.constexpr, RELU: tl.constexpr, SUM: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute sums[part, client] = Σ slope·normal, Σ slope over a part's valid rows: gradients of weight and bias.

    With SUM, what a ReLU let through depends on a residual, too: passed becomes g, and 0 where its output y is 0.
    """
    client, part, c, s = _place(shift, shift_stride, parts, clients, C, SHIFT, True, BC)
    limit = tl.load(valid + client).to(tl.int32) * P
    average, r, w, b = _parameters(mean, scale, weight, bias, stride, client, c, C)
    x += client * rows * C
    g += client * rows * C
    if SUM:
        y += client * rows * C
        passed += client * rows * C
    weighted, plain = tl.zeros((BM, BC), dtype=tl.float32), tl.zeros((BM, BC), dtype=tl.float32)
    for first in range(part * share, tl.minimum(part * share + share, rows if SUM else limit), BM):
        m = first + tl.arange(0, BM)
        place = m[:, None] * C + c[None, :]
        inside = existing(m < limit, c, C, BC)
        inner, normal, slope = _slopes(g, x, place, inside, s, average, r, w, b, False, RELU)
        if SUM:
            slope = tl.where(tl.load(y + place, mask=inside, other=0.0) <= 0, 0.0, slope)
            tl.store(passed + place, slope.to(passed.dtype.element_ty), mask=existing(m < rows, c, C, BC))
        weighted += slope * normal
        plain += slope
    out = sums + (part * clients + client) * 2 * C + c
    tl.store(out, tl.sum(weighted, axis=0), mask=c < C)
    tl.store(out + C, tl.sum(plain, axis=0), mask=c < C)


@triton.jit
def _back(
    g, x, shift, valid, mean, scale, weight, bias, by_both, out, shares, shift_stride, stride, rows, share, parts,
    clients, P,
    C: tl.constexpr, SHIFT: tl.constexpr, GELU: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute the gradient by x, and shares[part, client], a part's contribution to the gradient by the shift."""
    client, part, c, s = _place(shift, shift_stride, parts, clients, C, SHIFT, False, BC)
    limit = tl.load(valid + client).to(tl.int32) * P
    n = tl.maximum(limit.to(tl.float32), 1.0)
    average, r, w, b = _parameters(mean, scale, weight, bias, stride, client, c, C)
    tilt = tl.load(by_both + client * 2 * C + c, mask=c < C, other=0.0) / n
    level = tl.load(by_both + client * 2 * C + C + c, mask=c < C, other=0.0) / n
    x += client * rows * C
    g += client * rows * C
    out += client * rows * C
    total = tl.zeros((BM, BC), dtype=tl.float32)
    for first in range(part * share, tl.minimum(part * share + share, rows), BM):
        m = first + tl.arange(0, BM)
        place = m[:, None] * C + c[None, :]
        inner, normal, slope = _slopes(g, x, place, existing(m < limit, c, C, BC), s, average, r, w, b, GELU, RELU)
        by_x = (r * w)[None, :] * (slope - level[None, :] - normal * tilt[None, :])
        if GELU:
            by_x *= inner
        by_x = tl.where((m < limit)[:, None], by_x, 0.0)
        total += by_x
        tl.store(out + place, by_x.to(out.dtype.element_ty), mask=existing(m < rows, c, C, BC))
    if SHIFT:
        tl.store(shares + (part * clients + client) * C + c, tl.sum(total, axis=0), mask=c < C)


PROGRAMS = 1056  # eight for each multiprocessor of a large GPU, which run at the same time


class Plan:
    """How a stack's rows are divided among programs.

    Args:
        x: The images (n·B, C, H, W), channels-last, or vectors (n·B, C).
        clients: Number of clients n.
    """

    def __init__(self, x: Tensor, clients: int) -> None:
        self.clients, self.channels = clients, x.shape[1]
        self.pixels = x[0, 0].numel()
        self.rows = len(x) // clients * self.pixels
        self.bc = min(128, triton.next_power_of_2(self.channels))
        self.bm = 2048 // self.bc
        self.blocks = triton.cdiv(self.channels, self.bc)
        tiles = triton.cdiv(self.rows, self.bm)
        wanted = triton.cdiv(PROGRAMS, clients * self.blocks)
        self.share = triton.cdiv(tiles, max(1, min(tiles, wanted, 128))) * self.bm
        self.parts = triton.cdiv(self.rows, self.share)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks of channels, parts, clients."""
        return self.blocks, self.parts, self.clients

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """Arguments of all kernels that go through the rows."""
        return self.rows, self.share, self.parts, self.clients, self.pixels


Running = tuple[Tensor, Tensor, Tensor | None]


def batch_statistics(
    x: Tensor, shift: Tensor | None, valid: Tensor, mean: Tensor, scale: Tensor,
    running: Running | None, momentum: float, eps: float, kept: Tensor | None,
) -> None:  # fmt: skip
    """Compute each client's mean and 1/deviation (n, C) of the input, or of its GELU, which is written to kept.

    Running means and variances (n, C), and numbers of batches (n,), change in place.
    """
    plan = Plan(x, len(valid))
    sums = mean.new_empty((plan.parts, plan.clients, 2, plan.channels))
    options = (plan.channels, shift is not None, kept is not None)
    _moments[plan.grid](
        x, _shift(shift, mean), valid, sums, x if kept is None else kept, _stride(shift), *plan.sizes, *options,
        plan.bm, plan.bc, num_warps=4,
    )  # fmt: skip
    a, b, batches = running or (mean, mean, None)
    counted = mean if batches is None else batches
    _statistics[(plan.blocks, 1, plan.clients)](
        x, _shift(shift, mean), valid, sums, mean, scale, a, b, counted, _stride(shift), a.stride(0), b.stride(0),
        counted.stride(0), momentum, eps, plan.rows, plan.parts, plan.clients, plan.pixels, *options,
        running is not None, batches is not None, triton.next_power_of_2(plan.parts), plan.bc, num_warps=4,
    )  # fmt: skip


def batch_normalize(
    x: Tensor, shift: Tensor | None, valid: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, bias: Tensor,
    residual: Tensor | None, out: Tensor, relu: bool,
) -> None:  # fmt: skip
    """Normalize x to out with statistics (n, C), and weight and bias (n, C) of equal strides; then add the residual."""
    plan = Plan(x, len(valid))
    _normalize[plan.grid](
        x, _shift(shift, mean), valid, mean, scale, weight, bias, x if residual is None else residual, out,
        _stride(shift), weight.stride(0), *plan.sizes,
        plan.channels, shift is not None, relu, residual is not None, plan.bm, plan.bc, num_warps=4,
    )  # fmt: skip


def batch_normalize_back(
    g: Tensor, x: Tensor, shift: Tensor | None, valid: Tensor, mean: Tensor, scale: Tensor, weight: Tensor,
    bias: Tensor, kept: Tensor | None, y: Tensor | None, passed: Tensor, out: Tensor, relu: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Write the gradient by x to out; return those by weight and bias (n, 2, C), and by the shift (n, C).

    Where y is the output of a ReLU of the sum with a residual, the gradient by the residual is written to passed.
    """
    plan = Plan(x, len(valid))
    given: tuple[Any, ...] = (valid, mean, scale, weight, bias)
    shifted: tuple[Any, ...] = (x, _shift(shift, mean))
    summed = shifted if kept is None else (kept, mean)
    sums = mean.new_empty((plan.parts, plan.clients, 2, plan.channels))
    _back_sums[plan.grid](
        g, *summed, *given, g if y is None else y, passed, sums, _stride(shift), weight.stride(0), *plan.sizes,
        plan.channels, shift is not None and kept is None, relu, y is not None, plan.bm, plan.bc, num_warps=4,
    )  # fmt: skip
    by_both, g = total(sums), g if y is None else passed
    shares = sums if shift is None else mean.new_empty((plan.parts, plan.clients, plan.channels))
    _back[plan.grid](
        g, *shifted, *given, by_both, out, shares, _stride(shift), weight.stride(0), *plan.sizes,
        plan.channels, shift is not None, kept is not None, relu, plan.bm, plan.bc, num_warps=4,
    )  # fmt: skip
    return by_both, None if shift is None else total(shares)


def _shift(shift: Tensor | None, other: Tensor) -> Tensor:
    """Return what the kernels take as the shift; they do not read it where there is none."""
    return other if shift is None else shift


def _stride(shift: Tensor | None) -> int:
    return 0 if shift is None else shift.stride(0)
