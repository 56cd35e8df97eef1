"""BatchNorm in stacks: every client has its own parameters, batch statistics and running statistics.

A stack pads short batches. The valid examples of a client are always its first rows, and only these count.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.executors import gpu

BATCH_NORMS: tuple[type[nn.Module], ...] = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class ValidExamples:
    """The number of examples of the stack that is being computed, and of the valid ones of each client."""

    def __init__(self) -> None:
        self.set(None)

    def set(self, weight: Tensor | None) -> None:
        """Take the weights (n, B) of the examples, which are zero for padding; None stands for no padding."""
        self._weight: Tensor | None = weight
        self._tensor: Tensor | None = None
        self.__dict__.pop("counts", None)

    @functools.cached_property
    def counts(self) -> list[int] | None:
        """The counts on the host; None without padding."""
        return None if self.tensor is None else self.tensor.tolist()

    @property
    def examples(self) -> int:
        """The number of examples of all clients together."""
        assert self._weight is not None
        return self._weight.numel()

    @property
    def tensor(self) -> Tensor | None:
        """The counts (n,) on the device; None without padding."""
        if self._tensor is None and self._weight is not None:
            self._tensor = (self._weight > 0).sum(dim=1)
        return self._tensor


class StackedBatchNorm(nn.Module):
    """BatchNorm over examples (n·B, C, …) with parameters and running statistics (n, C); never built, but assumed.

    A layer of a copied model takes this class, so it has the attributes of `nn.BatchNorm2d` and its siblings.
    """

    valid: ValidExamples
    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    momentum: float | None
    eps: float
    track_running_stats: bool

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each client's examples; in training, update its running statistics in place."""
        y = self.fused(x)
        return self.in_steps(x) if y is None else y

    def fused(
        self, x: Tensor, shift: Tensor | None = None, *, gelu: bool = False, relu: bool = False,
        residual: Tensor | None = None,
    ) -> Tensor | None:  # fmt: skip
        """Do the same in few passes over memory, with what surrounds the layer; None where that is not possible.

        Args:
            x: Examples of all clients.
            shift: Numbers (n, C) to add first, or None.
            gelu: Whether to apply a GELU before the normalization.
            relu: Whether to apply a ReLU after it.
            residual: Numbers to add before the ReLU, or None.
        """
        if not self.training and self.running_mean is not None:
            return None
        if self.weight is None or (self.momentum is None and self.running_mean is not None):
            return None
        valid, running = self._valid(x, len(self.weight)), None
        if self.running_mean is not None and self.running_var is not None:
            running = self.running_mean, self.running_var, self.num_batches_tracked
        return gpu.batch_norm(
            x, shift, self.weight, self.bias, valid, running, self.momentum or 0.0, self.eps, gelu, relu, residual
        )

    def in_steps(self, x: Tensor) -> Tensor:
        """Normalize with torch's operations."""
        if not self.training and self.running_mean is not None:
            return self._by_running_statistics(x)
        clients = self._clients(x)
        if x.device.type == "cpu":
            return self._on_cpu(x, clients)
        return self._on_device(x, clients)

    def _clients(self, x: Tensor) -> int:
        for tensor in (self.weight, self.running_mean):
            if tensor is not None:
                return len(tensor)
        valid = self.valid.tensor
        assert valid is not None, "a layer without parameters and statistics needs the counts"
        return len(valid)

    def _by_running_statistics(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        n = len(self.running_mean)
        shape = (n, 1, -1, *(1,) * (x.ndim - 2))
        y = x.view(n, x.shape[0] // n, *x.shape[1:]) - self.running_mean.view(shape)
        scale = (self.running_var + self.eps).rsqrt()
        y = y * (scale if self.weight is None else scale * self.weight).view(shape)
        return (y if self.bias is None else y + self.bias.view(shape)).view_as(x)

    def _on_cpu(self, x: Tensor, clients: int) -> Tensor:
        counts = self.valid.counts or [x.shape[0] // clients] * clients
        factors = self._factors(counts)
        x = x.contiguous(memory_format=_format(x))
        y: Tensor = _PerClient.apply(  # type: ignore[no-untyped-call]
            x, self.weight, self.bias, self.running_mean, self.running_var, counts, factors, self.eps
        )
        return y

    def _factors(self, counts: Sequence[int]) -> list[float]:
        """Return by how much each client's running statistics move, and count the batch."""
        self._count(torch.tensor([count > 0 for count in counts]))
        if self.momentum is not None:
            return [self.momentum] * len(counts)
        assert self.num_batches_tracked is not None
        return (1 / self.num_batches_tracked.double().clamp(min=1)).flatten().tolist()

    def _on_device(self, x: Tensor, clients: int) -> Tensor:
        valid = self._valid(x, clients)
        y, mean, variance = masked_batch_norm(x, self.weight, self.bias, valid, self.eps)
        if self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                self._update(mean, variance, valid, x[0, 0].numel())
        return y

    def _valid(self, x: Tensor, clients: int) -> Tensor:
        if self.valid.tensor is not None:
            return self.valid.tensor
        return torch.full((clients,), x.shape[0] // clients, device=x.device)

    def _count(self, busy: Tensor) -> None:
        """Count the batch, for clients with one."""
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(busy.to(self.num_batches_tracked.dtype).view_as(self.num_batches_tracked))

    def _update(self, mean: Tensor, variance: Tensor, valid: Tensor, pixels: int) -> None:
        """Move the running statistics toward those of the batch, for clients with a batch."""
        assert self.running_mean is not None
        assert self.running_var is not None
        busy = valid > 0
        self._count(busy)
        if self.momentum is not None:
            factor = torch.full_like(mean[:, :1], self.momentum)
        else:
            assert self.num_batches_tracked is not None
            factor = (1 / self.num_batches_tracked.clamp(min=1)).view(-1, 1).to(mean.dtype)
        factor = torch.where(busy[:, None], factor, torch.zeros_like(factor))
        count = (valid * pixels)[:, None].to(mean.dtype)
        unbiased = variance * count / (count - 1).clamp(min=1)
        self.running_mean.add_(factor * (mean - self.running_mean))
        self.running_var.add_(factor * (unbiased - self.running_var))


def _format(x: Tensor) -> torch.memory_format:
    """Return the memory format in which PyTorch's kernels compute correctly; on a transposed tensor they do not."""
    channels_last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if channels_last else torch.contiguous_format


class _PerClient(torch.autograd.Function):
    """PyTorch's own BatchNorm for one client after the other, which computes the same bits as a client alone."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
        counts: list[int], factors: list[float], eps: float,
    ) -> Tensor:  # fmt: skip
        size = x.shape[0] // len(counts)
        y = torch.zeros_like(x) if min(counts) < size else torch.empty_like(x)
        saved = x.new_zeros((2, len(counts), x.shape[1]))
        for i, (count, factor) in enumerate(zip(counts, factors, strict=True)):
            if count:
                rows = slice(i * size, i * size + count)
                own = [None if t is None else t[i] for t in (weight, bias, mean, var)]
                outputs = (y[rows], saved[0, i], saved[1, i])
                torch.ops.aten.native_batch_norm.out(
                    x[rows], *own, True, factor, eps, out=outputs[0], save_mean=outputs[1], save_invstd=outputs[2]
                )
        ctx.save_for_backward(x, weight, saved)
        ctx.counts, ctx.eps, ctx.has_bias = counts, eps, bias is not None
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, saved = ctx.saved_tensors
        g = g.contiguous(memory_format=_format(x))
        counts, size = ctx.counts, x.shape[0] // len(ctx.counts)
        by_x = torch.zeros_like(x) if min(counts) < size else torch.empty_like(x)
        by_weight, by_bias = (saved.new_zeros(saved.shape[1:]) for _ in range(2))
        mask = [True, weight is not None, ctx.has_bias]
        for i, count in enumerate(counts):
            if count:
                rows = slice(i * size, i * size + count)
                own = None if weight is None else weight[i]
                found = torch.ops.aten.native_batch_norm_backward(
                    g[rows], x[rows], own, None, None, saved[0, i], saved[1, i], True, ctx.eps, mask
                )
                by_x[rows] = found[0]
                if weight is not None:
                    by_weight[i] = found[1]
                if ctx.has_bias:
                    by_bias[i] = found[2]
        gradients = (by_x, by_weight if weight is not None else None, by_bias if ctx.has_bias else None)
        return *gradients, None, None, None, None, None


def masked_batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, valid: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize (n·B, C, …) over each client's valid examples, with operations that need no host.

    Args:
        x: Examples of all clients.
        weight: Weights (n, C), or None.
        bias: Biases (n, C), or None.
        valid: Number of valid examples per client (n,).
        eps: Added to the variance.

    Returns:
        The output, and mean and biased variance of each client (n, C), which have no gradient.
    """
    n = len(valid)
    rows = x.reshape(n, x.shape[0] // n, x.shape[1], -1)
    inside = (torch.arange(rows.shape[1], device=x.device) < valid[:, None]).to(x.dtype)[:, :, None, None]
    count = (valid * rows.shape[3]).clamp(min=1).to(x.dtype).view(n, 1, 1, 1)
    mean = (rows * inside).sum(dim=(1, 3), keepdim=True) / count
    centered = (rows - mean) * inside
    variance = centered.square().sum(dim=(1, 3), keepdim=True) / count
    y = centered * (variance + eps).rsqrt()
    if weight is not None:
        y = y * weight.view(n, 1, -1, 1)
    if bias is not None:
        y = (y + bias.view(n, 1, -1, 1)) * inside
    return y.view_as(x), mean.detach().view(n, -1), variance.detach().view(n, -1)
