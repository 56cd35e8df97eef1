"""GroupNorm of a stack of models, each with its own weight and bias, over channels-last images.

They are read once, unless they are large.  torch's own takes images only by channel, so that every layer would turn
them twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from offbeat.executors.gpu import triton_support as triton_support


def suits(x: Tensor, groups: int) -> bool:
    """Whether the kernels here can do it: images on a GPU, channels and groups in powers of two."""
    channels, each = x.shape[1], x.shape[1] // groups
    return triton_support.has_kernels(x) and x.ndim == 4 and channels & (channels - 1) == 0 and each & (each - 1) == 0


def normalised(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool) -> Tensor:
    """(n·B, C, H, W), channels-last, with weight and bias (n, C)."""
    x = x.contiguous(memory_format=torch.channels_last)
    apply = _operator if torch.compiler.is_compiling() else _Plain.apply
    out: Tensor = apply(x, weight, bias, groups, eps, relu)[0]  # type: ignore[no-untyped-call]
    return out


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What comes out, in single precision; mean and 1/deviation of every channel's group."""
    from offbeat.executors.gpu import kernels

    out, means, scales = _like(x, weight, bias, groups, eps, relu)
    kernels.normalise(x, *_alike(weight, bias), out, means, scales, groups, eps, relu)
    return out, means, scales


def _backward(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, means: Tensor, scales: Tensor, groups: int, relu: bool
) -> tuple[Tensor, Tensor]:
    """The gradients by x, and by weight and bias (n, 2, C)."""
    from offbeat.executors.gpu import kernels

    (n, channels), images = weight.shape, len(x)
    by_x, shares = torch.empty_like(x), means.new_empty((images, 2, channels))
    g = g.contiguous(memory_format=torch.channels_last)
    kernels.normalise_back(g, x, *_alike(weight, bias), means, scales, by_x, shares, groups, relu)
    return by_x, shares.view(n, images // n, 2, channels).sum(1)


def _alike(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whole and equally far apart, as those are that lie in a stack of models."""
    if weight.stride() == bias.stride() and weight.stride(1) == 1:
        return weight, bias
    return weight.contiguous(), bias.contiguous()


def _like(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    means = torch.empty(x.shape[:2], dtype=torch.float32, device=x.device)
    return torch.empty_like(x, dtype=torch.float32), means, torch.empty_like(means)


def _like_back(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, means: Tensor, scales: Tensor, groups: int, relu: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), means.new_empty((weight.shape[0], 2, weight.shape[1]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, bias, ctx.groups, _, ctx.relu = inputs
    ctx.save_for_backward(x, weight, bias, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # zeros for the two


class _Plain(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        return _forward(*inputs)

    setup_context = staticmethod(_save)

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, _backward, g)


def _gradients(ctx: Any, backward: Callable[..., tuple[Tensor, Tensor]], g: Tensor) -> tuple[Tensor | None, ...]:
    by_x, by_both = backward(g, *ctx.saved_tensors, ctx.groups, ctx.relu)
    return by_x, *by_both.unbind(1), None, None, None


_operator = torch.library.custom_op("offbeat::normalise", _forward, mutates_args=())
_operator_back = torch.library.custom_op("offbeat::normalise_back", _backward, mutates_args=())
_operator.register_fake(_like)
_operator_back.register_fake(_like_back)
_operator.register_autograd(lambda ctx, g, *_: _gradients(ctx, _operator_back, g), setup_context=_save)
