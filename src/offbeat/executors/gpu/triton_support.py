"""Whether Triton's kernels (`kernels`) can be used on this machine."""

from __future__ import annotations

import functools
import importlib.util
import warnings

import torch
from torch import Tensor

from offbeat.errors import first_line

# Whether Triton's kernels run on the GPUs here, as far as was looked for.  A plain variable: it is read by what is
# compiled.
_RUNNING = False


@functools.cache
def detect_triton(device: torch.device) -> None:
    """Before anything is compiled or captured: whether Triton's kernels can be used there."""
    global _RUNNING
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        _RUNNING = runs(device)


def runs(device: torch.device) -> bool:
    """Try the smallest kernel.  Triton comes with torch, but builds a part of itself at its first use."""
    old = torch.zeros((1, 1), device=device)
    try:
        from offbeat.executors.gpu import kernels

        kernels.keep(torch.ones_like(old), old, torch.ones_like(old, dtype=torch.bool))
        return bool(old.item() == 1)
    except Exception as error:  # no compiler, no headers, a GPU that is too old
        reason = f"Triton's kernels do not run here, so stacks of convolutions are slower: {first_line(error)}"
        warnings.warn(reason, RuntimeWarning, stacklevel=2)
        return False


def has_kernels(x: Tensor) -> bool:
    """Whether Triton's run where x lies, on numbers like these."""
    return _RUNNING and x.is_cuda and x.dtype in (torch.float32, torch.bfloat16)
