"""Whether the Triton kernels (`kernels`) can be used on this machine."""

from __future__ import annotations

import functools
import importlib.util
import warnings

import torch
from torch import Tensor

from offbeat.errors import first_line

# Whether the kernels run on this machine's GPUs, as far as tested. A plain variable, because compiled code reads it.
_RUNNING = False


@functools.cache
def detect_triton(device: torch.device) -> None:
    """Test whether the Triton kernels run on a device; call this before anything is compiled or captured."""
    global _RUNNING
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        _RUNNING = runs(device)


def runs(device: torch.device) -> bool:
    """Run the smallest kernel and return whether it works.

    Triton is installed with torch, but it builds a part of itself at its first use, which can fail.
    """
    old = torch.zeros((1, 1), device=device)
    try:
        from offbeat.executors.gpu import kernels

        kernels.keep(torch.ones_like(old), old, torch.ones_like(old, dtype=torch.bool))
        return bool(old.item() == 1)
    except Exception as error:  # no compiler, no headers, a GPU that is too old
        reason = f"Triton kernels do not run here, so stacks of convolutions are slower: {first_line(error)}"
        warnings.warn(reason, RuntimeWarning, stacklevel=2)
        return False


def has_kernels(x: Tensor) -> bool:
    """Return whether the kernels run on the device and the data type of x."""
    return _RUNNING and x.is_cuda and x.dtype in (torch.float32, torch.bfloat16)
