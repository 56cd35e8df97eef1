"""GroupNorm with separate weights and biases per client, over channels-last images.

Images are read once, unless they are large. torch's own GroupNorm is not channels-last, so that every layer would
convert the memory format twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from offbeat.executors.gpu import triton_support


def group_norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool) -> Tensor | None:
    """Normalize each client's images with its own parameters; return None where the kernels do not apply.

    They apply to images on a GPU whose channels and channels per group are powers of two.

    Args:
        x: Images of all clients (n·B, C, H, W).
        weight: Weights (n, C).
        bias: Biases (n, C).
        groups: Groups of channels.
        eps: Added to the variance.
        relu: Whether to apply a ReLU to the output.
    """
    channels, each = x.shape[1], x.shape[1] // groups
    powers = channels & (channels - 1) == 0 and each & (each - 1) == 0
    if not (triton_support.has_kernels(x) and x.ndim == 4 and powers):
        return None
    return stacked_group_norm(x, weight, bias, groups, eps, relu)


def stacked_group_norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool) -> Tensor:
    """Normalize (n·B, C, H, W), channels-last, with weight and bias (n, C)."""
    x = x.contiguous(memory_format=torch.channels_last)
    apply = _operator if torch.compiler.is_compiling() else _Plain.apply
    out: Tensor = apply(x, weight, bias, groups, eps, relu)[0]  # type: ignore[no-untyped-call]
    return out


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output in single precision, and mean and 1/deviation of every channel's group."""
    from offbeat.executors.gpu import kernels

    out, means, scales = _like(x, weight, bias, groups, eps, relu)
    kernels.normalize(x, *_equally_strided(weight, bias), out, means, scales, groups, eps, relu)
    return out, means, scales


def _backward(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, means: Tensor, scales: Tensor, groups: int, relu: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients by x, and by weight and bias (n, 2, C)."""
    from offbeat.executors.gpu import kernels

    (n, channels), images = weight.shape, len(x)
    by_x, shares = torch.empty_like(x), means.new_empty((images, 2, channels))
    g = g.contiguous(memory_format=torch.channels_last)
    kernels.normalize_back(g, x, *_equally_strided(weight, bias), means, scales, by_x, shares, groups, relu)
    return by_x, shares.view(n, images // n, 2, channels).sum(1)


def _equally_strided(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight and bias with contiguous rows and equal strides, as they have in a stack of models."""
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
    ctx.set_materialize_grads(False)  # mean and deviation have none


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


_operator = torch.library.custom_op("offbeat::group_norm", _forward, mutates_args=())
_operator_back = torch.library.custom_op("offbeat::group_norm_back", _backward, mutates_args=())
_operator.register_fake(_like)
_operator_back.register_fake(_like_back)
_operator.register_autograd(lambda ctx, g, *_: _gradients(ctx, _operator_back, g), setup_context=_save)
