"""Linear layers of many clients as one batched matrix product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from offbeat.client.local_step import GradientFactors


def affine(x: Tensor, weight: Tensor, bias: Tensor | None, factors: GradientFactors | None = None) -> Tensor:
    """Apply the linear layer of each client, with weights (n, out, in), to its part of x (n·B, …, in)."""
    n, out, _ = weight.shape
    y = product(x.reshape(n, -1, x.shape[-1]), weight, factors)
    if bias is not None:
        y = y + bias[:, None].to(y.dtype)
    return y.reshape(*x.shape[:-1], out)


def product(rows: Tensor, weight: Tensor, factors: GradientFactors | None) -> Tensor:
    """Return rows·weightᵀ per client, in low precision under autocast."""
    if torch.is_autocast_enabled(rows.device.type):
        low = torch.get_autocast_dtype(rows.device.type)
        weight, rows = weight.to(low), rows.to(low)
    y: Tensor = _Product.apply(rows, weight) if factors is None else _Factored.apply(rows, weight, factors)  # type: ignore[no-untyped-call]
    return y


class _Product(torch.autograd.Function):
    """Matrix products whose gradient by the weight is contiguous; autograd's own would be transposed."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return torch.bmm(rows, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        return _rows_gradient(ctx, g, weight), _weight_gradient(g, rows) if ctx.needs_input_grad[1] else None


class _Factored(torch.autograd.Function):
    """Matrix products that offer the factors of the weight's gradient, and compute it only if they are not taken."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, factors: GradientFactors) -> Tensor:
        ctx.factors = factors
        return _Product.forward(ctx, rows, weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows, weight = ctx.saved_tensors
        taken = not ctx.needs_input_grad[1] or ctx.factors.take(weight, g, rows)
        return _rows_gradient(ctx, g, weight), None if taken else torch.bmm(g.transpose(1, 2), rows), None


def _weight_gradient(g: Tensor, rows: Tensor) -> Tensor:
    """Return gᵀ·rows per client; on a GPU as the sum of products that together fill it."""
    (n, length, out), size = g.shape, rows.shape[2]
    tiles = n * -(-out // 256) * -(-size // 128)
    parts = 1 if g.device.type == "cpu" or g.dtype != torch.float32 else min(length // 512, 160 // tiles)
    while parts > 1 and length % parts:
        parts -= 1
    if parts < 2:
        return torch.bmm(g.transpose(1, 2), rows)
    products = torch.bmm(g.reshape(n * parts, -1, out).transpose(1, 2), rows.reshape(n * parts, -1, size))
    return products.view(n, parts, out, size).sum(1)


def _rows_gradient(ctx: Any, g: Tensor, weight: Tensor) -> Tensor | None:
    return torch.bmm(g, weight) if ctx.needs_input_grad[0] else None
