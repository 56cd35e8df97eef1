"""BatchNorm with separate statistics, weights and biases per client, and the activation before or after it.

Images are channels-last: a client has `rows` rows of C numbers, of which the first ones belong to valid examples. The
input of the normalization is a = GELU(x + shift), or x + shift, or x.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

HALF_ROOT = tl.constexpr(0.7071067811865476)  # 1/√2
DENSITY = tl.constexpr(0.3989422804014327)  # 1/√(2π)


@triton.jit
def _input(x, place, inside, shift, GELU: tl.constexpr):
    """Return z = x + shift and a."""
    z = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) + shift[None, :]
    a = z
    if GELU:
        a = 0.5 * z * (1.0 + tl.erf(z * HALF_ROOT))
    return z, a


@triton.jit
def _channels(shift, C: tl.constexpr, SHIFT: tl.constexpr, BC: tl.constexpr):
    """Return the client, the part, the channels of a program, which exist, and their shift."""
    client, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    s = tl.zeros((BC,), dtype=tl.float32)
    if SHIFT:
        s = tl.load(shift + client * C + c, mask=c < C, other=0.0)
    return client, part, c, c < C, s


@triton.jit
def _moments(
    x, shift, valid, sums, rows, share, clients, P,
    C: tl.constexpr, SHIFT: tl.constexpr, GELU: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute sums[part, client] = Σ(a − o), Σ(a − o)² over a part's valid rows; o is the client's first row."""
    client, part, c, known, s = _channels(shift, C, SHIFT, BC)
    limit = tl.load(valid + client).to(tl.int32) * P
    place = client * rows * C + c[None, :]
    first_z, origin = _input(x, place, known[None, :], s, GELU)
    total, squares = tl.zeros((BM, BC), dtype=tl.float32), tl.zeros((BM, BC), dtype=tl.float32)
    for first in range(part * share, tl.minimum(part * share + share, limit), BM):
        m = first + tl.arange(0, BM)
        inside = (m < limit)[:, None] & known[None, :]
        z, a = _input(x, place + m[:, None] * C, inside, s, GELU)
        off = tl.where(inside, a - origin, 0.0)
        total += off
        squares += off * off
    out = sums + (part * clients + client) * 2 * C + c
    tl.store(out, tl.sum(total, axis=0), mask=known)
    tl.store(out + C, tl.sum(squares, axis=0), mask=known)


@triton.jit
def _statistics(
    x, shift, valid, sums, mean, scale, running_mean, running_var, mean_stride, var_stride, momentum, eps,
    parts, rows, clients, P,
    C: tl.constexpr, SHIFT: tl.constexpr, GELU: tl.constexpr, TRACK: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute each client's mean and 1/deviation from the sums, and move its running statistics."""
    client, _, c, known, s = _channels(shift, C, SHIFT, BC)
    count = (tl.load(valid + client).to(tl.int32) * P).to(tl.float32)
    first_z, origin = _input(x, client * rows * C + c[None, :], known[None, :], s, GELU)
    total, squares = tl.zeros((BC,), dtype=tl.float32), tl.zeros((BC,), dtype=tl.float32)
    for part in range(parts):
        place = sums + (part * clients + client) * 2 * C + c
        total += tl.load(place, mask=known, other=0.0)
        squares += tl.load(place + C, mask=known, other=0.0)
    n = tl.maximum(count, 1.0)
    off = total / n
    variance = tl.maximum(squares / n - off * off, 0.0)
    average = tl.sum(origin, axis=0) + off
    tl.store(mean + client * C + c, average, mask=known)
    tl.store(scale + client * C + c, 1.0 / tl.sqrt(variance + eps), mask=known)
    if TRACK:
        moves = c < tl.where(count > 0, C, 0)
        place = running_mean + client * mean_stride + c
        old = tl.load(place, mask=moves, other=0.0)
        tl.store(place, old + momentum * (average - old), mask=moves)
        place = running_var + client * var_stride + c
        old = tl.load(place, mask=moves, other=0.0)
        unbiased = variance * n / tl.maximum(n - 1.0, 1.0)
        tl.store(place, old + momentum * (unbiased - old), mask=moves)


@triton.jit
def _parameters(mean, scale, weight, bias, stride, client, c, known, C: tl.constexpr):
    """Return a client's mean, 1/deviation, weight and bias of some channels."""
    place = client * C + c
    m, r = tl.load(mean + place, mask=known, other=0.0), tl.load(scale + place, mask=known, other=0.0)
    w = tl.load(weight + client * stride + c, mask=known, other=0.0)
    return m, r, w, tl.load(bias + client * stride + c, mask=known, other=0.0)


@triton.jit
def _normalize(
    x, shift, valid, mean, scale, weight, bias, out, stride, rows, share, P,
    C: tl.constexpr, SHIFT: tl.constexpr, GELU: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute out = weight·(a − mean)·scale + bias, and a ReLU of it; rows of padding become 0."""
    client, part, c, known, s = _channels(shift, C, SHIFT, BC)
    limit = tl.load(valid + client).to(tl.int32) * P
    average, r, w, b = _parameters(mean, scale, weight, bias, stride, client, c, known, C)
    place = client * rows * C + c[None, :]
    for first in range(part * share, tl.minimum(part * share + share, rows), BM):
        m = first + tl.arange(0, BM)
        here = (m < rows)[:, None] & known[None, :]
        z, a = _input(x, place + m[:, None] * C, here, s, GELU)
        y = (a - average[None, :]) * (r * w)[None, :] + b[None, :]
        if RELU:
            y = tl.where(y <= 0, 0.0, y)
        y = tl.where((m < limit)[:, None], y, 0.0)
        tl.store(out + place + m[:, None] * C, y.to(out.dtype.element_ty), mask=here)


@triton.jit
def _slopes(
    g, x, place, inside, s, average, r, w, b, GELU: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Return z, the normalized input and the gradient behind the ReLU, which is zero for padding."""
    z, a = _input(x, place, inside, s, GELU)
    normal = (a - average[None, :]) * r[None, :]
    slope = tl.load(g + place, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        slope = tl.where(normal * w[None, :] + b[None, :] <= 0, 0.0, slope)
    return z, normal, slope


@triton.jit
def _back_sums(
    g, x, shift, valid, mean, scale, weight, bias, sums, stride, rows, share, clients, P,
    C: tl.constexpr, SHIFT: tl.constexpr, GELU: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute sums[part, client] = Σ slope·normal, Σ slope over a part's valid rows: gradients of weight and bias."""
    client, part, c, known, s = _channels(shift, C, SHIFT, BC)
    limit = tl.load(valid + client).to(tl.int32) * P
    average, r, w, b = _parameters(mean, scale, weight, bias, stride, client, c, known, C)
    place = client * rows * C + c[None, :]
    weighted, plain = tl.zeros((BM, BC), dtype=tl.float32), tl.zeros((BM, BC), dtype=tl.float32)
    for first in range(part * share, tl.minimum(part * share + share, limit), BM):
        m = first + tl.arange(0, BM)
        inside = (m < limit)[:, None] & known[None, :]
        z, normal, slope = _slopes(g, x, place + m[:, None] * C, inside, s, average, r, w, b, GELU, RELU)
        weighted += slope * normal
        plain += slope
    out = sums + (part * clients + client) * 2 * C + c
    tl.store(out, tl.sum(weighted, axis=0), mask=known)
    tl.store(out + C, tl.sum(plain, axis=0), mask=known)


@triton.jit
def _back(
    g, x, shift, valid, mean, scale, weight, bias, by_both, out, shares, stride, rows, share, clients, P,
    C: tl.constexpr, SHIFT: tl.constexpr, GELU: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute the gradient by x, and shares[part, client], a part's contribution to the gradient by the shift."""
    client, part, c, known, s = _channels(shift, C, SHIFT, BC)
    limit = tl.load(valid + client).to(tl.int32) * P
    n = tl.maximum(limit.to(tl.float32), 1.0)
    average, r, w, b = _parameters(mean, scale, weight, bias, stride, client, c, known, C)
    tilt = tl.load(by_both + client * 2 * C + c, mask=known, other=0.0) / n
    level = tl.load(by_both + client * 2 * C + C + c, mask=known, other=0.0) / n
    place = client * rows * C + c[None, :]
    total = tl.zeros((BM, BC), dtype=tl.float32)
    for first in range(part * share, tl.minimum(part * share + share, rows), BM):
        m = first + tl.arange(0, BM)
        here, inside = (m < rows)[:, None] & known[None, :], (m < limit)[:, None] & known[None, :]
        z, normal, slope = _slopes(g, x, place + m[:, None] * C, inside, s, average, r, w, b, GELU, RELU)
        by_x = (r * w)[None, :] * (slope - level[None, :] - normal * tilt[None, :])
        if GELU:
            by_x *= 0.5 * (1.0 + tl.erf(z * HALF_ROOT)) + z * DENSITY * tl.exp(-0.5 * z * z)
        by_x = tl.where(inside, by_x, 0.0)
        total += by_x
        tl.store(out + place + m[:, None] * C, by_x.to(out.dtype.element_ty), mask=here)
    if SHIFT:
        tl.store(shares + (part * clients + client) * C + c, tl.sum(total, axis=0), mask=known)


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
        self.bc = min(64, triton.next_power_of_2(self.channels))
        self.bm = 2048 // self.bc
        self.blocks = triton.cdiv(self.channels, self.bc)
        tiles = triton.cdiv(self.rows, self.bm)
        wanted = triton.cdiv(2048, clients * self.blocks)  # programs for all multiprocessors of a large GPU
        self.share = triton.cdiv(tiles, max(1, min(tiles, wanted, 128))) * self.bm
        self.parts = triton.cdiv(self.rows, self.share)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Parts, clients, blocks of channels."""
        return self.parts, self.clients, self.blocks


def batch_statistics(
    x: Tensor, shift: Tensor | None, valid: Tensor, mean: Tensor, scale: Tensor,
    running: tuple[Tensor, Tensor] | None, momentum: float, eps: float, gelu: bool,
) -> None:  # fmt: skip
    """Compute each client's mean and 1/deviation (n, C), and move its running statistics (n, C) in place."""
    plan = Plan(x, len(valid))
    sums = mean.new_empty((plan.parts, plan.clients, 2, plan.channels))
    shifts = mean if shift is None else shift
    options = (plan.channels, shift is not None, gelu)
    _moments[plan.grid](x, shifts, valid, sums, plan.rows, plan.share, plan.clients, plan.pixels, *options,
                        plan.bm, plan.bc, num_warps=4)  # fmt: skip
    a, b = (mean, mean) if running is None else running
    _statistics[(1, plan.clients, plan.blocks)](
        x, shifts, valid, sums, mean, scale, a, b, a.stride(0), b.stride(0), momentum, eps, plan.parts, plan.rows,
        plan.clients, plan.pixels, *options, running is not None, plan.bc, num_warps=1,
    )  # fmt: skip


def batch_normalize(
    x: Tensor, shift: Tensor | None, valid: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, bias: Tensor,
    out: Tensor, gelu: bool, relu: bool,
) -> None:  # fmt: skip
    """Normalize x to out with statistics (n, C), and weight and bias (n, C) of equal strides."""
    plan = Plan(x, len(valid))
    _normalize[plan.grid](
        x, mean if shift is None else shift, valid, mean, scale, weight, bias, out, weight.stride(0), plan.rows,
        plan.share, plan.pixels, plan.channels, shift is not None, gelu, relu, plan.bm, plan.bc, num_warps=4,
    )  # fmt: skip


def batch_normalize_back(
    g: Tensor, x: Tensor, shift: Tensor | None, valid: Tensor, mean: Tensor, scale: Tensor, weight: Tensor,
    bias: Tensor, out: Tensor, gelu: bool, relu: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Write the gradient by x to out; return those by weight and bias (n, 2, C), and by the shift (n, C)."""
    plan = Plan(x, len(valid))
    shifts = mean if shift is None else shift
    sums = mean.new_empty((plan.parts, plan.clients, 2, plan.channels))
    options = (plan.channels, shift is not None, gelu, relu, plan.bm, plan.bc)
    _back_sums[plan.grid](g, x, shifts, valid, mean, scale, weight, bias, sums, weight.stride(0), plan.rows,
                          plan.share, plan.clients, plan.pixels, *options, num_warps=4)  # fmt: skip
    by_both = sums.sum(0)
    shares = sums if shift is None else mean.new_empty((plan.parts, plan.clients, plan.channels))
    _back[plan.grid](g, x, shifts, valid, mean, scale, weight, bias, by_both, out, shares, weight.stride(0), plan.rows,
                     plan.share, plan.clients, plan.pixels, *options, num_warps=4)  # fmt: skip
    return by_both, None if shift is None else shares.sum(0)
