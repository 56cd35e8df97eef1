"""Properties of a model on which the choice and the settings of an executor depend."""

from __future__ import annotations

import torch
from torch import Tensor

from offbeat.client.context import TrainingContext
from offbeat.errors import first_line
from offbeat.executors.batch_norm import BATCH_NORMS
from offbeat.executors.flops import forward_flops
from offbeat.executors.stacked import Stack
from offbeat.executors.stacked_layers import STACKED_LAYERS
from offbeat.messages import Job
from offbeat.tasks.base import in_dtype
from offbeat.trees import call, map_tensors, tensors
from offbeat.vectors import copied

# Operations of a forward pass, times local steps, from which compiling pays: about three million steps of a CNN. On an
# H200 compiling takes 10 to 40 seconds and makes these steps 2 to 10 % shorter, or 15 % in bfloat16.
WORTH_COMPILING = 5e15


def worth_compiling(context: TrainingContext, steps: int) -> bool:
    """Return whether compiling the model pays for this number of local steps; the same on every machine."""
    batches, _ = context.plan(Job(0, 0, 0, context.layout.read(context.module), 1, 0))
    inputs = context.inputs(torch.from_numpy(batches[0]).to(context.device))
    return float(forward_flops(context.module, inputs)) * steps > WORTH_COMPILING


@torch.no_grad()
def mixes_examples(context: TrainingContext, *, except_batch_norm: bool = False) -> bool:
    """Return whether the output for an example depends on the rest of the batch, as with batch statistics.

    Args:
        context: Model, data and task.
        except_batch_norm: Whether BatchNorm layers are in evaluation mode, so that they mix nothing.
    """
    module = copied(context.module).train()
    for layer in module.modules() if except_batch_norm else ():
        if isinstance(layer, BATCH_NORMS):
            layer.eval()
    index = torch.zeros(3, dtype=torch.int64, device=context.device)
    one, labels = context.inputs_at(index), context.labels_at(index)
    other = map_tensors(_changed, one)
    losses = []
    with torch.random.fork_rng(devices=[context.device] if context.device.type == "cuda" else []):
        for inputs in (one, other):
            torch.manual_seed(0)  # the same dropout for both
            outputs = in_dtype(call(module, inputs), torch.float32)
            found = [*tensors(outputs), context.task.losses(outputs, labels, 3)]
            losses.append(torch.cat([value[:1].flatten().float() for value in found]))
    return not torch.allclose(losses[0], losses[1], rtol=1e-3, atol=1e-4)


def _changed(inputs: Tensor) -> Tensor:
    """Return inputs with other examples after the first one; masks and flags keep their values."""
    if inputs.is_floating_point():
        return torch.cat([inputs[:1], inputs[1:] + 1])
    return torch.cat([inputs[:1], (inputs[1:] == 0).to(inputs.dtype)])  # tokens 0 and 1 always exist


def why_not_stackable(context: TrainingContext) -> str | None:
    """Return why models of this kind cannot be trained as a stack; None if they can."""
    if context.data.dataset.reader is not None:
        return "its examples are read when they are needed, one client after the other."
    context.module.train()
    x = context.layout.read(context.module)
    batches, _ = context.plans([Job(0, 0, 0, x, 1, 0)])
    batch = torch.from_numpy(batches[0, :, :1]).to(context.device).expand(2, 2, *batches.shape[3:])
    with torch.random.fork_rng(devices=[context.device] if context.device.type == "cuda" else []):
        if mixes_examples(context, except_batch_norm=True):
            return "it mixes the examples of a batch, so that padding would affect the result."
        try:
            stack = Stack(context)
            buffers = context.buffers.read(context.module).repeat(2, 1) if context.buffers.names else None
            if (name := stack.unstackable_buffer()) is not None:
                return (
                    f"training changes its buffer {name!r}, which only BatchNorm layers may do, in a model whose "
                    f"layers with parameters all have a stacked form: {', '.join(STACKED_LAYERS)}."
                )
            stack.gradient(torch.stack([x, x]), batch, x.new_full((2, 2), 0.5), buffers)
        except Exception as error:  # a kernel may also fail for lack of GPU resources
            return first_line(error)
    return None
