"""One module for many models: layers take stacked parameters (n, …) and the concatenated batches of clients (n·B, …).

Operations without parameters (activations, pooling, a residual sum) treat the first dimension as a batch and need no
change. The few kinds of layers with parameters get a stacked form (`stacked_layers.py`), made of batched matrix
products and grouped convolutions.
"""

from __future__ import annotations

import copy
import functools
import operator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from offbeat.client.context import TrainingContext
from offbeat.client.local_step import GradientFactors
from offbeat.executors import gpu
from offbeat.executors.batch_norm import BATCH_NORMS, StackedBatchNorm, ValidExamples
from offbeat.executors.stacked_layers import stacked
from offbeat.tasks.base import in_dtype, scores
from offbeat.trees import Tree, call, map_tensors, tensors


class Stack:
    """Computes losses and gradients of a stack of models (n, d), each on its own row of a batch (n, B).

    Args:
        context: Model, data and device.
    """

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        gpu.detect_triton(context.device)
        self.images = context.device.type == "cuda" and isinstance(context.x, Tensor) and context.x.ndim == 4
        self.factors = GradientFactors() if context.device.type == "cpu" else None
        self.valid = ValidExamples()
        module = stacked(context.module, self.factors, self.valid)
        self._normalizes = module is not None and any(isinstance(m, StackedBatchNorm) for m in module.modules())
        self._stacked = module if module is not None and self._agrees(module) else None

        def forward(parameters: dict[str, Tensor], x: Tree) -> Any:
            return call(context.module, x, parameters)

        self._vmapped = vmap(forward, randomness="different")

    @functools.cached_property
    def independent(self) -> bool:
        """Whether another stack of the same model can be trained at the same time."""
        return self._stacked is not None and not is_random(self.context)

    def unstackable_buffer(self) -> str | None:
        """Return the name of a buffer that training changes and that cannot be stacked; None if there is none.

        Only BatchNorm layers in a stacked form update a buffer for each model of a stack.
        """
        modules = self.context.module.named_modules() if self._stacked is not None else ()
        stackable = {
            f"{name}.{buffer}".removeprefix(".")
            for name, layer in modules
            if type(layer) in BATCH_NORMS
            for buffer, _ in layer.named_buffers()
        }
        return next((name for name in self.context.buffers.names if name not in stackable), None)

    def losses(
        self, parameters: dict[str, Tensor], batch: Tensor, weight: Tensor, buffers: Tensor | None = None
    ) -> Tensor:
        """Return each row's weighted mean loss (n,).

        No row's loss depends on another row, so the gradient of their sum is the stack of the gradients.

        Args:
            parameters: Parameters of the models (n, …).
            batch: Indices of the examples (n, B).
            weight: Weights of the examples (n, B); zero for padding, which follows the valid examples.
            buffers: Running statistics of the models (n, b), which are updated in place, if they have any.
        """
        context = self.context
        inputs = context.inputs(batch)
        if buffers is not None:
            parameters = parameters | context.buffers.unflatten(buffers)
        if self._normalizes:
            self.valid.set(weight)
        with context.autocast():
            outputs = in_dtype(self._forward(parameters, inputs), weight.dtype)
        # A loss per example depends on no other example, so the rows can be merged into one batch.
        losses = context.task.losses(outputs, merged(context.labels(batch)), weight.numel())
        return (losses.view_as(weight) * weight).sum(dim=1)

    def gradient(
        self, y: Tensor, batch: Tensor, weight: Tensor, buffers: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients (n, d) and losses (n,) of models (n, d); the other arguments are those of `losses`."""
        y = y.detach().requires_grad_()
        losses = self.losses(self.context.layout.unflatten(y), batch, weight, buffers)
        (g,) = torch.autograd.grad(losses.sum(), y)
        return g, losses.detach()

    def _forward(self, parameters: dict[str, Tensor], inputs: Tree) -> Any:
        """Return the outputs for the merged batches (n·B, …)."""
        if self._stacked is None:
            return merged(self._vmapped(parameters, inputs))
        batch = merged(inputs)
        if self.images:
            batch = batch.contiguous(memory_format=torch.channels_last)
        return call(self._stacked, batch, parameters)

    @torch.no_grad()
    def _agrees(self, module: nn.Module) -> bool:
        """Return whether a stacked module computes the same as the model; if it uses its batch size, it may not.

        BatchNorm layers are in training mode, with a short batch, and have to update the same running statistics.
        """
        context, valid = self.context, torch.tensor([3, 2, 3])
        x, b = context.layout.read(context.module), context.buffers.read(context.module)
        y, buffers = torch.stack([x, 0.9 * x, 1.1 * x]), torch.stack([b, b, b])
        inputs = context.first_inputs(9)
        modes = context.module.training, module.training
        for each in (context.module, module):
            normalizing(each)
        self.valid.set((torch.arange(3) < valid[:, None]).to(x))
        try:
            found = _flat(call(module, inputs, context.layout.unflatten(y) | context.buffers.unflatten(buffers)))
            found = torch.cat([found[3 * i : 3 * i + int(count)] for i, count in enumerate(valid)])
            single, statistics = [], []
            for i, (row, count) in enumerate(zip(y, valid.tolist(), strict=True)):
                own, part = b.clone(), map_tensors(operator.itemgetter(slice(3 * i, 3 * i + count)), inputs)
                parameters = context.layout.unflatten(row) | context.buffers.unflatten(own)
                single.append(_flat(call(context.module, part, parameters)))
                statistics.append(own)
            pairs = [(found, torch.cat(single)), (buffers, torch.stack(statistics))]
            return all(bool((a - b).norm() <= 0.03 * b.norm()) for a, b in pairs)  # TF32's rounding in many layers
        except Exception:  # the model or a kernel may raise anything
            return False
        finally:
            context.module.train(modes[0]), module.train(modes[1])


@torch.no_grad()
def is_random(context: TrainingContext) -> bool:
    """Return whether the model draws random numbers in training; all threads share one generator."""
    module = copy.deepcopy(context.module).train()
    with torch.random.fork_rng(devices=[context.device] if context.device.type == "cuda" else []):
        before = torch.get_rng_state()
        call(module, context.first_inputs(2))
        return not torch.equal(before, torch.get_rng_state())


def merged(tree: Tree) -> Tree:
    """Return a tree of tensors (n, B, …) as one of (n·B, …)."""
    return map_tensors(lambda t: t.flatten(0, 1), tree)


def _flat(outputs: Any) -> Tensor:
    """Return a model's outputs as one tensor (examples, numbers)."""
    parts = list(tensors(outputs)) or [scores(outputs)]
    return torch.cat([part.flatten(1).double() for part in parts if part.is_floating_point()], dim=1)


def normalizing(module: nn.Module) -> None:
    """Put a module into evaluation mode except for its BatchNorm layers: nothing is random, but statistics count."""
    module.eval()
    for layer in module.modules():
        if isinstance(layer, (*BATCH_NORMS, StackedBatchNorm)):
            layer.train()
