"""Convolution with separate filters per client, as one batched matrix product on the GPU.

The only equivalent in cuDNN is grouped convolution, which is slow for many small groups. Here the product of image
patches and filters is computed tile by tile; patches are gathered when they are needed and never written to memory (an
implicit GEMM). Images are channels-last, so that a patch consists of contiguous pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from offbeat.executors.gpu import triton_support


def conv2d(x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor | None:
    """Convolve each client's images with its own filters; return None where the kernels do not apply.

    They apply on a GPU to dense and depthwise convolutions with equal strides and no dilation.

    Args:
        x: Images of all clients (n·B, C, H, W).
        weight: Filters (n, O, C/groups, kh, kw).
        stride: Stride per dimension.
        padding: Padding per dimension.
        dilation: Dilation per dimension.
        groups: Groups of channels.
    """
    if not _applies(x, weight, stride, padding, dilation, groups):
        return None
    return stacked_conv2d(x, weight, stride[0], padding, groups)


def conv2d_and_input(
    x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
) -> tuple[Tensor, Tensor] | None:
    """Convolve like `conv2d`, and return x for its other uses, such as a residual connection.

    The gradient by x of these uses is added where that of the convolution is computed, in the same pass over memory.
    Returns None where the kernels do not apply, also if the convolution is compiled or in another precision than x.
    """
    precision = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    if torch.compiler.is_compiling() or precision != x.dtype:
        return None
    if not _applies(x, weight, stride, padding, dilation, groups):
        return None
    return stacked_conv2d_and_input(x, weight, stride[0], padding, groups)


def _applies(x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> bool:
    within = all(p < k for k, p in zip(weight.shape[-2:], padding, strict=True)) and len(set(stride)) == 1
    plain = (groups == 1 or groups == x.shape[1] == weight.shape[1]) and set(dilation) == {1}
    numbers = max(x.shape[1], weight.shape[1]) * x.shape[2] * x.shape[3] * (len(x) // len(weight))
    # Offsets within a client's images are 32-bit integers.
    return triton_support.has_kernels(x) and within and plain and numbers < 2**31


def stacked_conv2d(x: Tensor, weight: Tensor, stride: int, padding: Any, groups: int = 1) -> Tensor:
    """Convolve (n·B, C, H, W) with filters (n, O, C/groups, kh, kw) to (n·B, O, H', W'), channels-last."""
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    x, kind = x.contiguous(memory_format=torch.channels_last), DENSE if groups == 1 else DEPTHWISE
    if torch.compiler.is_compiling():
        return OPERATORS[kind].forward(x, weight, stride, *padding)
    # Not through a custom operator: that imports the whole compiler, which takes seconds.
    out: Tensor = _Plain.apply(x, weight, kind, stride, *padding)  # type: ignore[no-untyped-call]
    return out


def stacked_conv2d_and_input(
    x: Tensor, weight: Tensor, stride: int, padding: Any, groups: int = 1
) -> tuple[Tensor, Tensor]:
    """Convolve like `stacked_conv2d`; return the output and x, whose gradients come together in the backward pass."""
    x = x.contiguous(memory_format=torch.channels_last)
    kind = DENSE if groups == 1 else DEPTHWISE
    out: tuple[Tensor, Tensor] = _WithInput.apply(x, weight, kind, stride, *padding)  # type: ignore[no-untyped-call]
    return out


def _dense(x: Tensor, weight: Tensor, stride: int, ph: int, pw: int) -> Tensor:
    n, out, channels, kh, kw = weight.shape
    table = torch.empty((n, out, kh * kw, channels), dtype=x.dtype, device=x.device)
    return _multiply(x, weight, table, (1, 3, 2), _images(x, weight, stride, ph, pw), (ph, pw), stride=stride)


def _dense_by_images(
    g: Tensor, weight: Tensor, channels: int, height: int, width: int, stride: int, ph: int, pw: int,
    other: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the gradient by the images: a convolution of g, dilated by the stride, with the flipped filters.

    Another gradient by them is added.
    """
    n, out_channels, _, kh, kw = weight.shape
    table = torch.empty((n, channels, kh * kw, out_channels), dtype=g.dtype, device=g.device)
    out = _empty(g, channels, height, width)
    return _multiply(g, weight, table, (3, 1, 2), out, (kh - 1 - ph, kw - 1 - pw), spread=stride, other=other)


def _multiply(
    x: Tensor, weight: Tensor, table: Tensor, order: tuple[int, int, int], out: Tensor, pad: tuple[int, int],
    stride: int = 1, spread: int = 1, other: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Convolve with filters (n, O, C, kh, kw) that are first written to the table, whose dimensions they permute."""
    from offbeat.executors.gpu import kernels

    flat = weight.reshape(*weight.shape[:3], -1)
    kernels.arrange(flat[None], table.permute(0, *order), turn=order[0] == 3)
    size = weight.shape[3], weight.shape[4]
    kernels.products(x, table.flatten(2), out, size, pad, stride, spread, _precision(), other)
    return out


def _dense_by_kernels(
    x: Tensor, g: Tensor, n: int, channels: int, kh: int, kw: int, stride: int, ph: int, pw: int
) -> Tensor:
    """Return the gradient by the filters: patches(x)ᵀ·g per client, summed over parts of the batch in fixed order."""
    from offbeat.executors.gpu import kernels

    images, out, height, width = g.shape
    pixels, taps = images // n * height * width, kh * kw * channels
    parts = max(1, min(pixels // 1024, 4096 // (n * -(-taps // 128) * -(-out // 128))))
    sums = torch.empty((parts, n, taps, out), dtype=torch.float32, device=x.device)
    kernels.weight_gradient(x, g, sums, (kh, kw), (ph, pw), stride, _precision())
    total = torch.empty((n, out, channels, kh, kw), dtype=torch.float32, device=x.device)
    if parts > 4:  # too many to add up one by one
        sums = kernels.total(sums)[None]
    table = sums.view(len(sums), n, kh * kw, -1, out).permute(0, 1, 4, 3, 2)
    kernels.arrange(table, total.flatten(3))
    return total


def _depthwise(x: Tensor, weight: Tensor, stride: int, ph: int, pw: int) -> Tensor:
    from offbeat.executors.gpu import kernels

    kh, kw = weight.shape[3:]
    out = _images(x, weight, stride, ph, pw)
    kernels.depthwise(x, _by_tap(weight), out, (kh, kw), (ph, pw), stride, 1)
    return out


def _by_tap(weight: Tensor, turn: bool = False) -> Tensor:
    """Return depthwise filters (n, C, 1, kh, kw) as a table (n, kh·kw, C), of the taps in reverse if turned."""
    from offbeat.executors.gpu import kernels

    flat = weight.reshape(*weight.shape[:3], -1)
    table = torch.empty((len(flat), flat.shape[3], flat.shape[1]), dtype=weight.dtype, device=weight.device)
    kernels.arrange(flat[None], table[:, :, :, None].permute(0, 2, 3, 1), turn)
    return table


def _depthwise_by_images(
    g: Tensor, weight: Tensor, channels: int, height: int, width: int, stride: int, ph: int, pw: int,
    other: Tensor | None = None,
) -> Tensor:  # fmt: skip
    from offbeat.executors.gpu import kernels

    kh, kw = weight.shape[3:]
    out = _empty(g, channels, height, width)
    kernels.depthwise(g, _by_tap(weight, turn=True), out, (kh, kw), (kh - 1 - ph, kw - 1 - pw), 1, stride, other)
    return out


def _depthwise_by_kernels(
    x: Tensor, g: Tensor, n: int, each: int, kh: int, kw: int, stride: int, ph: int, pw: int
) -> Tensor:
    from offbeat.executors.gpu import kernels

    images, channels, height, width = g.shape
    parts = max(1, min(images // n * height * width // 1024, 2048 // (n * kh * kw)))
    sums = torch.empty((parts, n, kh * kw, channels), dtype=torch.float32, device=x.device)
    kernels.depthwise_weight_gradient(x, g, sums, (kh, kw), (ph, pw), stride)
    total = torch.empty((n, channels, 1, kh, kw), dtype=torch.float32, device=x.device)
    kernels.arrange(sums[:, :, :, :, None].permute(0, 1, 3, 4, 2), total.flatten(3))
    return total


def _images(x: Tensor, weight: Tensor, stride: int, ph: int, pw: int) -> Tensor:
    """Return an empty tensor for the output."""
    (_, out, _, kh, kw), (height, width) = weight.shape, x.shape[2:]
    return _empty(x, out, (height + 2 * ph - kh) // stride + 1, (width + 2 * pw - kw) // stride + 1)


def _empty(like: Tensor, channels: int, height: int, width: int) -> Tensor:
    shape = (like.shape[0], channels, height, width)
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


@dataclass(frozen=True)
class Kind:
    """A convolution and its two gradients."""

    forward: Callable[..., Tensor]  # x, weight, stride, ph, pw
    by_images: Callable[..., Tensor]  # g, weight, shape of an image, stride, ph, pw, other gradient
    by_kernels: Callable[..., Tensor]  # x, g, clients, channels of a filter, kh, kw, stride, ph, pw

    def gradients(self, ctx: Any, g: Tensor, other: Tensor | None = None) -> tuple[Tensor | None, Tensor]:
        """Return the gradients by images, with another one added, and filters; the former is None if not needed."""
        x, weight = ctx.saved_tensors
        g = g.to(x.dtype).contiguous(memory_format=torch.channels_last)
        by_x = self.by_images(g, weight, *x.shape[1:], *ctx.geometry, other) if ctx.needs_input_grad[0] else None
        return by_x, self.by_kernels(x, g, weight.shape[0], *weight.shape[2:], *ctx.geometry)


class _Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, kind: Kind, *geometry: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.kind, ctx.geometry = kind, geometry
        return kind.forward(x, weight, *geometry)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.kind.gradients(ctx, g), None, None, None, None


class _WithInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, kind: Kind, *geometry: int) -> tuple[Tensor, Tensor]:
        return _Plain.forward(ctx, x, weight, kind, *geometry), x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor, other: Tensor) -> tuple[Tensor | None, ...]:
        other = other.to(g.dtype).contiguous(memory_format=torch.channels_last)
        return *ctx.kind.gradients(ctx, g, other), None, None, None, None


def _operators(name: str, kind: Kind) -> Kind:
    """Register a convolution as custom operators, which the compiler treats as opaque."""

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, *ctx.geometry = inputs
        ctx.save_for_backward(x, weight)

    def kernels_like(x: Tensor, g: Tensor, n: int, channels: int, *sizes: int) -> Tensor:
        return x.new_empty((n, g.shape[1], channels, *sizes[:2]), dtype=torch.float32)

    fakes = (_images, lambda g, weight, *shape: _empty(g, *shape[:3]), kernels_like)
    made = []
    for (part, function), fake in zip(vars(kind).items(), fakes, strict=True):
        made.append(torch.library.custom_op(f"offbeat::{name}_{part}", function, mutates_args=()))
        made[-1].register_fake(fake)
    operators = Kind(*made)
    made[0].register_autograd(lambda ctx, g: (*operators.gradients(ctx, g), None, None, None), setup_context=save)
    return operators


DENSE = Kind(_dense, _dense_by_images, _dense_by_kernels)
DEPTHWISE = Kind(_depthwise, _depthwise_by_images, _depthwise_by_kernels)
OPERATORS = {DENSE: _operators("dense", DENSE), DEPTHWISE: _operators("depthwise", DEPTHWISE)}
