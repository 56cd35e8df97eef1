"""One module for many models: layers take stacked parameters (n, …) and the concatenated batches of clients (n·B, …).

Operations without parameters (activations, pooling, a residual sum) treat the first dimension as a batch and need no
change. The few kinds of layers with parameters get a stacked form here, made of batched matrix products and grouped
convolutions. This is the mathematics of `torch.vmap` without its interpreter, and an ordinary program to compile.
"""

from __future__ import annotations

import copy
import functools
import operator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import conv2d, group_norm, layer_norm

from offbeat.client.context import TrainingContext
from offbeat.client.local_step import GradientFactors
from offbeat.executors import gpu
from offbeat.executors.batch_norm import BATCH_NORMS, StackedBatchNorm, ValidExamples
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


def stacked(module: nn.Module, factors: GradientFactors | None, valid: ValidExamples) -> nn.Module | None:
    """Return a copy of a module for `functional_call` with stacked parameters; None if it has other kinds of layers.

    Args:
        module: The module of a single model.
        factors: Where linear layers leave the factors of their gradients; None to compute the gradients.
        valid: Tells BatchNorm layers which examples are padding.
    """
    owners = [m for m in module.modules() if next(m.parameters(recurse=False), None) is not None]
    if not all(type(m) in _STACKED and _plain(m) for m in owners):
        return None
    result = copy.deepcopy(module)
    for layer in list(result.modules()):
        if type(layer) in _STACKED:
            layer.__class__ = _STACKED[type(layer)]
            layer.factors = factors  # type: ignore[assignment]
            layer.valid = valid  # type: ignore[assignment]
    return result


def normalizing(module: nn.Module) -> None:
    """Put a module into evaluation mode except for its BatchNorm layers: nothing is random, but statistics count."""
    module.eval()
    for layer in module.modules():
        if isinstance(layer, (*BATCH_NORMS, StackedBatchNorm)):
            layer.train()


def _plain(layer: nn.Module) -> bool:
    """Return whether a layer has only options that its stacked form supports."""
    if isinstance(layer, nn.Conv2d):
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and layer.padding_idx is None and not layer.scale_grad_by_freq
    return True


class _Linear(nn.Linear):
    factors: GradientFactors | None

    def forward(self, x: Tensor) -> Tensor:
        n, out, _ = self.weight.shape
        y = _product(x.reshape(n, -1, x.shape[-1]), self.weight, self.factors)
        if self.bias is not None:
            y = y + self.bias[:, None]
        return y.reshape(*x.shape[:-1], out)


def _product(rows: Tensor, weight: Tensor, factors: GradientFactors | None) -> Tensor:
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
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor]:
        rows, weight = ctx.saved_tensors
        return _rows_gradient(ctx, g, weight), torch.bmm(g.transpose(1, 2), rows)


class _Factored(torch.autograd.Function):
    """Matrix products that offer the factors of the weight's gradient, and compute it only if they are not taken."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, factors: GradientFactors) -> Tensor:
        ctx.factors = factors
        return _Product.forward(ctx, rows, weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows, weight = ctx.saved_tensors
        taken = ctx.factors.take(weight, g, rows)
        return _rows_gradient(ctx, g, weight), None if taken else torch.bmm(g.transpose(1, 2), rows), None


def _rows_gradient(ctx: Any, g: Tensor, weight: Tensor) -> Tensor | None:
    return torch.bmm(g, weight) if ctx.needs_input_grad[0] else None


class _Conv2d(nn.Conv2d):
    factors: GradientFactors | None

    def forward(self, x: Tensor) -> Tensor:
        return self.biased(self.products(x))

    def products(self, x: Tensor) -> Tensor:
        if self._tiles(*x.shape[2:]):
            return self._patches(x)
        y = gpu.conv2d(x, self.weight, self.stride, self.padding, self.dilation, self.groups)
        if y is not None:
            return y
        if self.kernel_size == (1, 1) and set(self.padding) == {0} and self.groups == 1:
            return self._patches(x[:, :, :: self.stride[0], :: self.stride[1]])
        n, out = self.weight.shape[:2]
        batch, (channels, height, width) = x.shape[0] // n, x.shape[1:]
        grouped = x.view(n, batch, channels, height, width).transpose(0, 1).reshape(batch, n * channels, height, width)
        y = conv2d(grouped, self.weight.flatten(0, 1), None, self.stride, self.padding, self.dilation, n * self.groups)
        return y.view(batch, n, out, *y.shape[2:]).transpose(0, 1).reshape(n * batch, out, *y.shape[2:])

    def _tiles(self, height: int, width: int) -> bool:
        """Return whether the kernel tiles the image without overlap or remainder, as in a patch embedding."""
        (kh, kw), plain = self.kernel_size, self.groups == 1 and set(self.dilation) == {1} and set(self.padding) == {0}
        return plain and self.stride == (kh, kw) and height % kh == 0 and width % kw == 0

    def _patches(self, x: Tensor) -> Tensor:
        """Convolve with one matrix product per client; the output is channels-last."""
        n, out, channels, kh, kw = self.weight.shape
        images, _, height, width = x.shape
        tiles = x.reshape(images, channels, height // kh, kh, width // kw, kw).permute(0, 2, 4, 1, 3, 5)
        y = _product(tiles.reshape(n, -1, channels * kh * kw), self.weight.flatten(2), self.factors)
        return y.view(images, height // kh, width // kw, out).permute(0, 3, 1, 2)

    def biased(self, y: Tensor) -> Tensor:
        if self.bias is None:
            return y
        return y + self.bias.repeat_interleave(y.shape[0] // len(self.bias), 0)[:, :, None, None]


class _Sequential(nn.Sequential):
    """Fuses some sequences of layers.

    The bias of a convolution and the ReLU are applied after a max-pooling instead of before it. Both preserve the order
    of numbers, so the result is the same to the last bit, and there is less to compute.
    """

    def forward(self, x: Tensor) -> Tensor:
        layers = list(self)
        while layers:
            layer, *layers = layers
            following = [type(other) for other in layers[:2]]
            if isinstance(layer, _GroupNorm) and following[:1] == [nn.ReLU]:
                x, layers = layer.normalize(x), layers[1:]
            elif isinstance(layer, _Conv2d) and following == [nn.ReLU, nn.MaxPool2d]:
                relu, pool, *layers = layers
                assert isinstance(pool, nn.MaxPool2d)
                x = layer.products(x)
                y = gpu.bias_relu_max_pool(x, layer.bias, pool) if layer.bias is not None else None
                x = relu(layer.biased(pool(x))) if y is None else y
            else:
                x = layer(x)
        return x


class _GroupNorm(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.normalize(x, relu=False)

    def normalize(self, x: Tensor, relu: bool = True) -> Tensor:
        """Normalize the images, followed by a ReLU or not."""
        if self.affine:
            normalized = gpu.group_norm(x, self.weight, self.bias, self.num_groups, self.eps, relu)
            if normalized is not None:
                return normalized
        y = group_norm(x, self.num_groups, None, None, self.eps)
        y = _scaled(y, self.weight, self.bias, (-1, *(1,) * (x.ndim - 2)))
        return y.relu() if relu else y


class _LayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        y = layer_norm(x, self.normalized_shape, None, None, self.eps)
        return _scaled(
            y, self.weight, self.bias, (*(1,) * (x.ndim - 1 - len(self.normalized_shape)), *self.normalized_shape)
        )


class _Embedding(nn.Embedding):
    def forward(self, x: Tensor) -> Tensor:
        n, words, size = self.weight.shape
        shift = torch.arange(n, device=x.device).mul(words).view(n, *(1,) * x.ndim)
        indices = x.view(n, x.shape[0] // n, *x.shape[1:]) + shift
        return self.weight.reshape(n * words, size)[indices].flatten(0, 1)


def _scaled(y: Tensor, weight: Tensor | None, bias: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """Return y·weight + bias with separate parameters per client."""
    if weight is None:
        return y
    n = weight.shape[0]
    rows = y.view(n, y.shape[0] // n, *y.shape[1:])
    rows = rows * weight.view(n, 1, *shape)
    return (rows if bias is None else rows + bias.view(n, 1, *shape)).view_as(y)


_STACKED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: _Linear,
    nn.Conv2d: _Conv2d,
    nn.Sequential: _Sequential,
    nn.GroupNorm: _GroupNorm,
    nn.LayerNorm: _LayerNorm,
    nn.Embedding: _Embedding,
    **dict.fromkeys(BATCH_NORMS, StackedBatchNorm),
}

STACKED_LAYERS = sorted(kind.__name__ for kind in _STACKED if kind is not nn.Sequential)
