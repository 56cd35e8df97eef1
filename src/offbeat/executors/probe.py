"""What a model does that an executor must know."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from offbeat.client.context import TrainingContext
from offbeat.errors import first_line
from offbeat.executors.stacked import Stack
from offbeat.messages import Job

# Calculations of a forward pass, times steps, from which on compiling pays.  On an H200 it takes 10 to 40 seconds and
# makes steps of a CNN 2 to 10 % shorter, in bfloat16 15 %; it comes to about three million of them.
WORTH_COMPILING = 5e15


def worth_compiling(context: TrainingContext, steps: int) -> bool:
    """Whether so many local steps are worth the time that compiling the model takes; the same on every machine."""
    with Calculations() as counter, torch.no_grad():
        batches, _ = context.plan(Job(0, 0, 0, context.layout.read(context.module), 1, 0))
        context.module(context.inputs(torch.from_numpy(batches[0]).to(context.device)))
    return float(counter.total) * steps > WORTH_COMPILING


class Calculations(TorchFunctionMode):
    """Counts those of matrix products and convolutions.

    torch's own `FlopCounterMode` imports the whole compiler, which takes seconds.  What is not known here (`einsum`,
    attention) counts nothing, so a model that is made of it is compiled later than it might be.
    """

    FIRST = ("matmul", "__matmul__", "mm", "bmm", "mv")  # the sum runs over the first factor's last dimension
    SECOND = ("linear", "addmm", "baddbmm")  # over the second's
    KERNELS = ("conv1d", "conv2d", "conv3d")

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out, name = func(*args, **(kwargs or {})), getattr(func, "__name__", "")
        tensors = [value for value in (*args, *(kwargs or {}).values()) if isinstance(value, torch.Tensor)]
        if name in self.FIRST:
            self.total += 2 * out.numel() * tensors[0].shape[-1]
        elif name in self.SECOND:
            self.total += 2 * out.numel() * tensors[1].shape[-1]
        elif name in self.KERNELS:
            self.total += 2 * out.numel() * tensors[1][0].numel()
        return out


@torch.no_grad()
def mixes_examples(context: TrainingContext) -> bool:
    """Whether the output for one example depends on what else is in the batch (batch statistics do that)."""
    module = copy.deepcopy(context.module).train()
    one = context.data.dataset.prepare(context.x[torch.zeros(3, dtype=torch.int64, device=context.device)])
    changed = one[1:] + 1 if one.is_floating_point() else (one[1:] == 0).to(one.dtype)  # tokens 0 and 1 always exist
    other = torch.cat([one[:1], changed])
    outputs = []
    with torch.random.fork_rng(devices=[context.device] if context.device.type == "cuda" else []):
        for inputs in (one, other):
            torch.manual_seed(0)  # the same dropout for both
            outputs.append(module(inputs)[0])
    return not torch.allclose(outputs[0], outputs[1], rtol=1e-3, atol=1e-4)


def why_not_stackable(context: TrainingContext) -> str | None:
    """Why a stack of such models cannot be trained; None when it can."""
    context.module.train()
    x = context.layout.read(context.module)
    batches, _ = context.plans([Job(0, 0, 0, x, 1, 0)])
    batch = torch.from_numpy(batches[0, :, :1]).to(context.device).expand(2, 2, *batches.shape[3:])
    with torch.random.fork_rng(devices=[context.device] if context.device.type == "cuda" else []):
        if mixes_examples(context):
            return "it mixes the examples of a batch, so that padding would count."
        if context.buffers.names:
            return f"training changes its buffer {context.buffers.names[0]!r}, which a stack would share."
        try:
            Stack(context).gradient(torch.stack([x, x]), batch, x.new_full((2, 2), 0.5))
        except Exception as error:  # a kernel may also fail for want of a GPU's resources
            return first_line(error)
    return None
