"""Bias, ReLU and max-pooling of a stack in one pass over the images, where the compiler does not see to that."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from offbeat.engine.executors import chip


def suits(x: Tensor, pool: nn.Module) -> bool:
    """Whether the kernels here can do it: on a GPU, tiles of 2×2 that leave nothing over."""
    assert isinstance(pool, nn.MaxPool2d)
    sides = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    plain = [side if isinstance(side, tuple) else (side, side) for side in sides] == [(2, 2), (2, 2), (0, 0), (1, 1)]
    whole = x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0 and not pool.return_indices
    return chip.has_kernels(x) and plain and whole and not torch.compiler.is_compiling()


def pooled(x: Tensor, bias: Tensor) -> Tensor:
    """max(0, largest of four + bias): (n·B, C, H, W) and (n, C) → (n·B, C, H/2, W/2), channels-last."""
    out: Tensor = _Pooled.apply(x, bias)  # type: ignore[no-untyped-call]
    return out


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        from offbeat.engine.executors import kernels

        x = x.contiguous(memory_format=torch.channels_last)
        images, channels, height, width = x.shape
        shape = (images, channels, height // 2, width // 2)
        out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        where = torch.empty_like(out, dtype=torch.uint8)
        kernels.pool(x, bias.contiguous(), out, where)
        ctx.save_for_backward(where)
        ctx.clients = len(bias)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        from offbeat.engine.executors import kernels

        (where,), n = ctx.saved_tensors, ctx.clients
        images, channels, height, width = g.shape
        parts = max(1, min(images // n * height * width // 256, 1024 // n))
        sums = torch.empty((parts, n, channels), dtype=torch.float32, device=g.device)
        shape = (images, channels, 2 * height, 2 * width)
        out = torch.empty(shape, dtype=g.dtype, device=g.device, memory_format=torch.channels_last)
        kernels.unpool(g.contiguous(memory_format=torch.channels_last), where, out, sums)
        return out, sums.sum(0)
