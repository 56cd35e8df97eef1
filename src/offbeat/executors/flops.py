"""Counting the floating-point operations of a forward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from offbeat.trees import Tree, call

_SUM_OVER_FIRST = ("matmul", "__matmul__", "mm", "bmm", "mv")  # the sum runs over the first factor's last dimension
_SUM_OVER_SECOND = ("linear", "addmm", "baddbmm")  # the sum runs over the second tensor's last dimension
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")


@torch.no_grad()
def forward_flops(module: nn.Module, inputs: Tree) -> int:
    """Return the floating-point operations of the matrix products and convolutions in a forward pass.

    For these the count equals that of `torch.utils.flop_counter.FlopCounterMode`, which is not used here for two
    reasons. It loads the whole compiler at its first use, which takes seconds, while the count decides whether the
    compiler is worth loading at all. And it also counts `einsum` and attention, which would change for existing models
    whether they are compiled, and with that the last bits of their results. Here such operations count nothing, so a
    model that consists of them is compiled later than it could be.
    """
    counter = _Counter()
    with counter:
        call(module, inputs)
    return counter.total


class _Counter(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out, name = func(*args, **(kwargs or {})), getattr(func, "__name__", "")
        tensors = [value for value in (*args, *(kwargs or {}).values()) if isinstance(value, Tensor)]
        if name in _SUM_OVER_FIRST:
            self.total += 2 * out.numel() * tensors[0].shape[-1]
        elif name in _SUM_OVER_SECOND:
            self.total += 2 * out.numel() * tensors[1].shape[-1]
        elif name in _CONVOLUTIONS:
            self.total += 2 * out.numel() * tensors[1][0].numel()
        return out
