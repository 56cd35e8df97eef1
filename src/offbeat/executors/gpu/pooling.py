"""Bias, ReLU and max-pooling with separate biases per client, in one pass over the images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from offbeat.executors.gpu import triton_support


def bias_relu_max_pool(x: Tensor, bias: Tensor, pool: nn.MaxPool2d) -> Tensor | None:
    """Add each client's bias, apply a ReLU and max-pool; return None where the kernels do not apply.

    They apply on a GPU to pools of 2×2 without padding or a remainder.

    Args:
        x: Images of all clients (n·B, C, H, W).
        bias: Biases (n, C).
        pool: The pooling layer.
    """
    sides = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    plain = [side if isinstance(side, tuple) else (side, side) for side in sides] == [(2, 2), (2, 2), (0, 0), (1, 1)]
    whole = x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0 and not pool.return_indices
    return stacked_pool(x, bias) if triton_support.has_kernels(x) and plain and whole else None


def stacked_pool(x: Tensor, bias: Tensor) -> Tensor:
    """Compute max(0, largest of 2×2 + bias): (n·B, C, H, W) and (n, C) → (n·B, C, H/2, W/2), channels-last."""
    x = x.contiguous(memory_format=torch.channels_last)
    apply = _operator if torch.compiler.is_compiling() else _Plain.apply
    out: Tensor = apply(x, bias)[0]  # type: ignore[no-untyped-call]
    return out


def _forward(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output and the position of each maximum."""
    from offbeat.executors.gpu import kernels

    out, where = _like(x, bias)
    kernels.pool(x, bias.contiguous(), out, where)
    return out, where


def _backward(g: Tensor, where: Tensor, clients: int) -> tuple[Tensor, Tensor]:
    """Return the gradients by x and by the bias."""
    from offbeat.executors.gpu import kernels

    images, channels, height, width = g.shape
    parts = max(1, min(images // clients * height * width // 128, 1024 // clients))
    sums = torch.empty((parts, clients, channels), dtype=torch.float32, device=g.device)
    out = _larger(g)
    kernels.unpool(g.contiguous(memory_format=torch.channels_last), where, out, sums)
    return out, sums.sum(0)


def _like(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    images, channels, height, width = x.shape
    shape = (images, channels, height // 2, width // 2)
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    return out, torch.empty_like(out, dtype=torch.uint8)


def _larger(g: Tensor) -> Tensor:
    images, channels, height, width = g.shape
    shape = (images, channels, 2 * height, 2 * width)
    return torch.empty(shape, dtype=g.dtype, device=g.device, memory_format=torch.channels_last)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.clients = inputs[1].shape[0]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # the positions have none


class _Plain(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return _forward(x, bias)

    setup_context = staticmethod(_save)

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        (where,) = ctx.saved_tensors
        return _backward(g, where, ctx.clients)


_operator = torch.library.custom_op("offbeat::pool", _forward, mutates_args=())
_operator_back = torch.library.custom_op("offbeat::pool_back", _backward, mutates_args=())
_operator.register_fake(_like)
_operator_back.register_fake(
    lambda g, where, clients: (_larger(g), g.new_empty((clients, g.shape[1]), dtype=torch.float32))
)
_operator.register_autograd(lambda ctx, g, _: _operator_back(g, *ctx.saved_tensors, ctx.clients), setup_context=_save)
