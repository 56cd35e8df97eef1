"""BatchNorm of stacks in few passes over memory, together with the bias and the activation before it.

Each client's own statistics are those of its valid examples. torch's operations would pass over the images ten times.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from offbeat.executors.gpu import triton_support

Running = tuple[Tensor, Tensor, Tensor | None]


def batch_norm(
    x: Tensor, shift: Tensor | None, weight: Tensor | None, bias: Tensor | None, valid: Tensor,
    running: Running | None, momentum: float, eps: float, gelu: bool, relu: bool, residual: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    """Normalize each client's valid examples; return None where the kernels do not apply.

    They apply to images and vectors on a GPU, outside the compiler, which fuses ordinary operations by itself.

    Args:
        x: Examples of all clients (n·B, C, H, W) or (n·B, C).
        shift: Numbers (n, C) to add first, such as the bias of a convolution, or None.
        weight: Weights (n, C), or None.
        bias: Biases (n, C), or None.
        valid: Number of valid examples per client (n,); the first ones are valid.
        running: Running mean and variance (n, C) and the number of batches (n,) or None, which change in place; or
            None.
        momentum: By how much they move.
        eps: Added to the variance.
        gelu: Whether to apply a GELU before the normalization.
        relu: Whether to apply a ReLU after it.
        residual: Numbers to add before the ReLU, of the shape of x, or None.
    """
    if not triton_support.has_kernels(x) or torch.compiler.is_compiling() or x.ndim not in (2, 4):
        return None
    if weight is None or bias is None or x.numel() // len(valid) >= 2**31:  # offsets are 32-bit integers
        return None
    return stacked_batch_norm(x, shift, weight, bias, valid, running, momentum, eps, gelu, relu, residual)


def stacked_batch_norm(
    x: Tensor, shift: Tensor | None, weight: Tensor, bias: Tensor, valid: Tensor,
    running: Running | None, momentum: float, eps: float, gelu: bool, relu: bool, residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Normalize with the kernels; the arguments are those of `batch_norm`."""
    x = _dense(x)
    residual = None if residual is None else _dense(residual.to(x.dtype))
    if shift is not None and shift.stride(1) != 1:
        shift = shift.contiguous()
    if weight.stride() != bias.stride() or weight.stride(1) != 1:
        weight, bias = weight.contiguous(), bias.contiguous()
    out: Tensor = _BatchNorm.apply(  # type: ignore[no-untyped-call]
        x, shift, weight, bias, residual, valid, running, momentum, eps, gelu, relu
    )
    return out


def _dense(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.contiguous()


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shift: Tensor | None, weight: Tensor, bias: Tensor, residual: Tensor | None, valid: Tensor,
        running: Running | None, momentum: float, eps: float, gelu: bool, relu: bool,
    ) -> Tensor:  # fmt: skip
        from offbeat.executors.gpu import kernels

        mean, scale = (torch.empty(weight.shape, dtype=torch.float32, device=x.device) for _ in range(2))
        out, kept = torch.empty_like(x), torch.empty_like(x) if gelu else None
        kernels.batch_statistics(x, shift, valid, mean, scale, running, momentum, eps, kept)
        read = (x, shift) if kept is None else (kept, None)
        kernels.batch_normalize(*read, valid, mean, scale, weight, bias, residual, out, relu)
        ctx.add = residual is not None
        ctx.save_for_backward(x, shift, weight, bias, valid, mean, scale, kept, out if ctx.add and relu else None)
        ctx.relu = relu and not ctx.add
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        from offbeat.executors.gpu import kernels

        x, shift, weight, bias, valid, mean, scale, kept, out = ctx.saved_tensors
        g, by_x = _dense(g), torch.empty_like(x)
        passed = g if out is None else torch.empty_like(g)
        by_both, by_shift = kernels.batch_normalize_back(
            g, x, shift, valid, mean, scale, weight, bias, kept, out, passed, by_x, ctx.relu
        )
        by_residual = passed if ctx.add else None
        return by_x, by_shift, by_both[:, 0], by_both[:, 1], by_residual, None, None, None, None, None, None
