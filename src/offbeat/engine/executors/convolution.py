"""A convolution in which every client has its own kernel, as one batched matrix product on the GPU.

cuDNN has no such thing but grouped convolution, which is slow for many small groups.  Here the product of image patches
and kernels is computed tile by tile, the patches being gathered as they are needed (an implicit GEMM) and never written
to memory.  Images lie as (image, row, column, channel), so that a patch is made of contiguous pieces.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

TRITON = importlib.util.find_spec("triton") is not None


def suits(x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> bool:
    """Whether the kernels here can do it: on a GPU, stride 1, odd kernels that do not make the image larger, all
    channels with all or each with itself."""
    within = all(k % 2 == 1 and p <= k // 2 for k, p in zip(weight.shape[-2:], padding, strict=True))
    plain = (groups == 1 or groups == x.shape[1] == weight.shape[1]) and set(stride) == {1} and set(dilation) == {1}
    return TRITON and x.is_cuda and within and plain and x.dtype in (torch.float32, torch.bfloat16)


def stacked_conv2d(x: Tensor, weight: Tensor, padding: Any, groups: int = 1) -> Tensor:
    """(n·B, C, H, W) with kernels (n, O, C/groups, kh, kw) → (n·B, O, H', W'), both channels-last."""
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    convolve = _convolve if groups == 1 else _depthwise
    out: Tensor = convolve(x.contiguous(memory_format=torch.channels_last), weight)
    return cropped(out, weight, padding)


def cropped(out: Tensor, weight: Tensor, padding: Sequence[int]) -> Tensor:
    """What less padding leaves of an image of full size."""
    for side, (size, pad) in enumerate(zip(weight.shape[-2:], padding, strict=True), start=2):
        if less := size // 2 - pad:
            out = out.narrow(side, less, out.shape[side] - 2 * less)
    return out


@torch.library.custom_op("offbeat::convolve", mutates_args=())
def _convolve(x: Tensor, weight: Tensor) -> Tensor:
    n, out, channels, kh, kw = weight.shape
    return _multiply(x, weight.permute(0, 3, 4, 2, 1).reshape(n, kh * kw * channels, out), kh, kw)


@_convolve.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return _images(x, weight.shape[1])


@torch.library.custom_op("offbeat::convolve_back", mutates_args=())
def _convolve_back(g: Tensor, weight: Tensor) -> Tensor:
    """The gradient by the images: a convolution of g with the kernels turned round."""
    n, out, channels, kh, kw = weight.shape
    return _multiply(g, weight.flip(3, 4).permute(0, 3, 4, 1, 2).reshape(n, kh * kw * out, channels), kh, kw)


@_convolve_back.register_fake
def _(g: Tensor, weight: Tensor) -> Tensor:
    return _images(g, weight.shape[2])


@torch.library.custom_op("offbeat::convolve_weight", mutates_args=())
def _convolve_weight(x: Tensor, g: Tensor, n: int, kh: int, kw: int) -> Tensor:
    """The gradient by the kernels: for each client patches(x)ᵀ·g, summed over parts of the batch in a fixed order."""
    from offbeat.engine.executors import kernels

    (images, channels, height, width), out = x.shape, g.shape[1]
    pixels, taps = images // n * height * width, kh * kw * channels
    parts = max(1, min(pixels // 1024, 4096 // (n * -(-taps // 128))))
    sums = torch.empty((parts, n, taps, out), dtype=torch.float32, device=x.device)
    kernels.weight_gradient(x, g, sums, n, kh, kw, _precision())
    total = sums.sum(0) if parts > 1 else sums[0]
    return total.view(n, kh, kw, channels, out).permute(0, 4, 3, 1, 2).contiguous()


@_convolve_weight.register_fake
def _(x: Tensor, g: Tensor, n: int, kh: int, kw: int) -> Tensor:
    return x.new_empty((n, g.shape[1], x.shape[1], kh, kw), dtype=torch.float32)


@torch.library.custom_op("offbeat::depthwise", mutates_args=())
def _depthwise(x: Tensor, weight: Tensor) -> Tensor:
    from offbeat.engine.executors import kernels

    n, channels, _, kh, kw = weight.shape
    out = _images(x, channels)
    kernels.depthwise(x, weight.reshape(n, channels, kh * kw).transpose(1, 2).contiguous(), out, kh, kw)
    return out


@_depthwise.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return _images(x, weight.shape[1])


@torch.library.custom_op("offbeat::depthwise_weight", mutates_args=())
def _depthwise_weight(x: Tensor, g: Tensor, n: int, kh: int, kw: int) -> Tensor:
    from offbeat.engine.executors import kernels

    images, channels, height, width = x.shape
    parts = max(1, min(images // n * height * width // 1024, 2048 // (n * kh * kw)))
    sums = torch.empty((parts, n, kh * kw, channels), dtype=torch.float32, device=x.device)
    kernels.depthwise_weight_gradient(x, g, sums, kh, kw)
    return sums.sum(0).transpose(1, 2).reshape(n, channels, 1, kh, kw)


@_depthwise_weight.register_fake
def _(x: Tensor, g: Tensor, n: int, kh: int, kw: int) -> Tensor:
    return x.new_empty((n, x.shape[1], 1, kh, kw), dtype=torch.float32)


def _multiply(x: Tensor, table: Tensor, kh: int, kw: int) -> Tensor:
    from offbeat.engine.executors import kernels

    out = _images(x, table.shape[2])
    kernels.products(x, table.to(x.dtype).contiguous(), out, kh, kw, _precision())
    return out


def _images(like: Tensor, channels: int) -> Tensor:
    shape = (like.shape[0], channels, like.shape[2], like.shape[3])
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor]:
    x, weight = ctx.saved_tensors
    g = g.to(x.dtype).contiguous(memory_format=torch.channels_last)
    by_x = _convolve_back(g, weight) if ctx.needs_input_grad[0] else None
    return by_x, _convolve_weight(x, g, weight.shape[0], weight.shape[3], weight.shape[4])


def _depthwise_gradients(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor]:
    x, weight = ctx.saved_tensors
    g = g.to(x.dtype).contiguous(memory_format=torch.channels_last)
    by_x = _depthwise(g, weight.flip(3, 4)) if ctx.needs_input_grad[0] else None
    return by_x, _depthwise_weight(x, g, weight.shape[0], weight.shape[3], weight.shape[4])


_convolve.register_autograd(_gradients, setup_context=_save)
_depthwise.register_autograd(_depthwise_gradients, setup_context=_save)
