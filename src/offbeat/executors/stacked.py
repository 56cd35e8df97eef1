"""One module for many models: layers take stacked parameters (n, …) and the concatenated batches of clients (n·B, …).

Operations without parameters (activations, pooling, a residual sum) treat the first dimension as a batch and need no
change. The few kinds of layers with parameters get a stacked form (`stacked_layers.py`), made of batched matrix
products and grouped convolutions; `stacked_form.py` decides which layers.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from offbeat.client.context import TrainingContext
from offbeat.client.local_step import GradientFactors
from offbeat.executors import gpu
from offbeat.executors.batch_norm import BATCH_NORMS, StackedBatchNorm, ValidExamples
from offbeat.executors.stacked_form import StackedForm, stacked_forms
from offbeat.executors.stacked_layers import PaddedEmbedding
from offbeat.tasks.base import in_dtype, scores
from offbeat.trees import Tree, call, map_tensors, tensors
from offbeat.vectors import Layout, copied


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
        forms = stacked_forms(context.module, self.factors, self.valid)
        self.form = next((form for form in forms if self._agrees(form)), None)
        if self.form is not None:
            self.form.module.train()
        self._vmapped = None if self.form is not None else vmapped(context.module)

    @functools.cached_property
    def independent(self) -> bool:
        """Whether another stack of the same model can be trained at the same time."""
        return self.form is not None and not is_random(self.context)

    def unstackable_buffer(self) -> str | None:
        """Return the name of a buffer that training changes and that cannot be stacked; None if there is none.

        Only BatchNorm layers in a stacked form update a buffer for each model of a stack.
        """
        modules = self.context.module.named_modules() if self.form is not None else ()
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
        if self.form is None:
            assert self._vmapped is not None
            return merged(self._vmapped(parameters, inputs))
        batch = merged(inputs)
        if self.images:
            batch = batch.contiguous(memory_format=torch.channels_last)
        return self.form(parameters, batch)

    @torch.no_grad()
    def _agrees(self, form: StackedForm) -> bool:
        """Return whether a stacked form computes the same as the model; if it uses its batch size, it may not.

        BatchNorm layers are in training mode, with a short batch, and have to update the same running statistics.
        """
        modules = self.context.module, form.module
        modes = [module.training for module in modules]
        for module in modules:
            normalizing(module)
        try:
            with _plain_attention():
                return all(self._agrees_on(form, batch) for batch in ([3, 2, 3], [2, 2]))
        except Exception:  # the model or a kernel may raise anything
            return False
        finally:
            for module, mode in zip(modules, modes, strict=True):
                module.train(mode)

    def _agrees_on(self, form: StackedForm, valid: Sequence[int]) -> bool:
        """Return whether a stacked form agrees for models with these numbers of examples; the first has the most."""
        context, n, width = self.context, len(valid), valid[0]
        y = _different(context.layout, context.layout.read(context.module), n, form.loose)
        b = context.buffers.read(context.module)
        buffers, inputs = b.repeat(n, 1), context.first_inputs(n * width)
        counts = torch.tensor(valid, device=context.device)
        self.valid.set((torch.arange(width, device=context.device) < counts[:, None]).to(y))
        found = _flat(form(context.layout.unflatten(y) | context.buffers.unflatten(buffers), inputs))
        found = torch.cat([found[width * i : width * i + count] for i, count in enumerate(valid)])
        single, statistics = [], []
        for i, (row, count) in enumerate(zip(y, valid, strict=True)):
            own, part = b.clone(), map_tensors(operator.itemgetter(slice(width * i, width * i + count)), inputs)
            parameters = context.layout.unflatten(row) | context.buffers.unflatten(own)
            single.append(_flat(call(context.module, part, parameters)))
            statistics.append(own)
        pairs = [(found, torch.cat(single)), (buffers, torch.stack(statistics))]
        rounding = 1e-3 if context.device.type == "cpu" else 0.03  # TF32 in many layers
        return all(a.shape == b.shape and bool((a - b).norm() <= rounding * b.norm()) for a, b in pairs)


def _different(layout: Layout, x: Tensor, n: int, loose: Container[str]) -> Tensor:
    """Return n models near x of which none agrees with another one in any parameter, also in those that are zero."""
    y = x * torch.linspace(0.9, 1.1, n).to(x)[:, None]
    generator = torch.Generator().manual_seed(0)
    for name, view in layout.unflatten(y).items():
        if name in loose or not view.any():
            noise = torch.randn(view.shape, generator=generator).to(view)
            view.add_(noise, alpha=0.5 if name in loose else 0.1)
    return y


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    """Turn off PyTorch's fused encoder layers, which read the parameters of layers in evaluation mode."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def vmapped(module: nn.Module) -> Callable[[dict[str, Tensor], Tree], Any]:
    """Return a function that computes a module for stacks of parameters (n, …) and inputs (n, B, …)."""
    if any(isinstance(layer, nn.Embedding) and layer.padding_idx is not None for layer in module.modules()):
        module = copied(module).train()
        for layer in module.modules():
            if type(layer) is nn.Embedding:
                layer.__class__ = PaddedEmbedding

    def forward(parameters: dict[str, Tensor], x: Tree) -> Any:
        with sdpa_kernel(SDPBackend.MATH):  # vmap would run the others once per model
            return call(module, x, parameters)

    return vmap(forward, randomness="different")


@torch.no_grad()
def is_random(context: TrainingContext) -> bool:
    """Return whether the model draws random numbers in training; all threads share one generator."""
    module = copied(context.module).train()
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
