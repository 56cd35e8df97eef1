"""Properties of a model and a client rule on which the choice and the settings of an executor depend."""

from __future__ import annotations

import torch
from torch import Tensor

from offbeat.client.context import TrainingContext
from offbeat.client.rules import ClientRule, Number, State, checked_initial_state
from offbeat.errors import first_line
from offbeat.executors.batch_norm import BATCH_NORMS
from offbeat.executors.flops import forward_flops
from offbeat.executors.stacked import Stack
from offbeat.executors.stacked_layers import STACKED_LAYERS
from offbeat.executors.vectorized import rows
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


def why_no_pure_steps(rule: ClientRule) -> str | None:
    """Return why only the rule itself can train, in its own loop; None if it has pure steps."""
    if not rule.own_loop:
        return None
    return f"the client rule {type(rule).__name__} trains in a loop of its own, one client after the other."


@torch.no_grad()
def why_steps_not_stackable(context: TrainingContext) -> str | None:
    """Return why the steps of two clients cannot be steps of one stack; None if they can."""
    rule, x = context.rule, context.layout.read(context.module)
    name, extension = type(rule).__name__, rule.server()
    if extension is not None:
        extension.start(x, context.data.clients)
    sent = dict(extension.extra()) if extension is not None else {}
    try:
        hash(rule)
    except TypeError as error:
        return f"the client rule {name} has a field without a hash ({error}): use field(hash=False), or a tuple."
    xs, rates = [x, 1.01 * x + 0.01], x.new_tensor([[0.5 * rule.lr], [rule.lr]])
    try:
        own = [checked_initial_state(rule, each) for each in xs]
        alone = [_step(rule, each, float(lr), sent, state) for each, lr, state in zip(xs, rates, own, strict=True)]
        together = _step(rule, torch.stack(xs), rates, rows([sent, sent]), rows(own))
    except Exception as error:  # a user's rule may raise anything
        return f"the client rule {name} cannot take the steps of two clients at once: {first_line(error)}"
    for what, value in together.items():
        expected = [each[what].double() for each in alone]
        if value.shape != (2, *expected[0].shape):
            shapes = f"{list(value.shape)} for two clients, not {[2, *expected[0].shape]}"
            return f"the client rule {name} cannot be stacked: the shape of {what} is {shapes}."
        # Up to the rounding of a stack: float32 has seven digits.
        if not torch.allclose(value.double(), torch.stack(expected), rtol=1e-3, atol=1e-4, equal_nan=True):
            return f"the client rule {name} cannot be stacked: {what} depends on the other clients, or on chance."
    return None


def _step(rule: ClientRule, x: Tensor, lr: Number, extra: State, client_state: State) -> State:
    """Return all results of a job of one step, with their names in words."""
    y, state = rule.step(x, 0.5 * x + 1, x, lr, rule.begin(x, extra, client_state))
    steps: Number = torch.ones_like(lr) if isinstance(lr, Tensor) else 1.0
    sent, kept = rule.finish(y, x, lr, steps, state)
    named = {"state": state, "vector to send": sent, "client state": kept}
    return {"y": y} | {f"the {kind} {name!r}": value for kind, part in named.items() for name, value in part.items()}


def why_not_stackable(context: TrainingContext) -> str | None:
    """Return why models of this kind cannot be trained as a stack; None if they can."""
    if (reason := why_no_pure_steps(context.rule)) is not None:
        return reason
    if context.data.dataset.reader is not None:
        return "its examples are read when they are needed, one client after the other."
    context.module.train()
    x = context.layout.read(context.module)
    batches, _ = context.plans([Job(0, 0, 0, x, 1, 0)])
    batch = torch.from_numpy(batches[0, :, :1]).to(context.device).expand(2, 2, *batches.shape[3:])
    with torch.random.fork_rng(devices=[context.device] if context.device.type == "cuda" else []):
        if (reason := why_steps_not_stackable(context)) is not None:
            return reason
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
