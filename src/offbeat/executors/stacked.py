"""One module for many models: its layers take stacked parameters (n, …) and batches of all clients in a row (n·B, …).

Whatever has no parameters (activations, pooling, a residual sum) treats the first dimension as a batch and needs no
change.  The few kinds of layers that have some get a stacked form here, made of batched matrix products and grouped
convolutions.  That is the same mathematics as `torch.vmap` without its interpreter, and a plain program to compile.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import conv2d, cross_entropy, group_norm, layer_norm

from offbeat.client.context import TrainingContext
from offbeat.client.local_step import GradientFactors
from offbeat.executors.gpu import convolution, pooling
from offbeat.executors.gpu import normalization as normalization
from offbeat.executors.gpu import triton_support as triton_support


class Stack:
    """The losses of a stack of models (n, d), each on its own row of a batch (n, B)."""

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        triton_support.detect_triton(context.device)
        self.images = context.device.type == "cuda" and len(context.data.dataset.shape) == 3
        self.factors = GradientFactors() if context.device.type == "cpu" else None
        twin = stacked(context.module, self.factors)
        self._twin = twin if twin is not None and self._agrees(twin) else None

        def forward(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            outputs: Tensor = functional_call(context.module, parameters, (x,))
            return outputs

        self._vmapped = vmap(forward, randomness="different")

    @functools.cached_property
    def independent(self) -> bool:
        """Whether another stack of the same model can be trained at the same time."""
        return self._twin is not None and not draws(self.context)

    def loss(self, y: Tensor, batch: Tensor, weight: Tensor) -> Tensor:
        """Σ over the rows of each one's weighted mean loss."""
        return self.loss_of(self.context.layout.unflatten(y), batch, weight)

    def loss_of(self, parameters: dict[str, Tensor], batch: Tensor, weight: Tensor) -> Tensor:
        """The same for models that lie parameter by parameter, (n, …) each."""
        context = self.context
        inputs = context.inputs(batch)
        with context.autocast():
            outputs = self._forward(parameters, inputs)
        losses = cross_entropy(
            outputs.flatten(0, 1).to(weight.dtype), context.labels(batch).flatten(), reduction="none"
        )
        return losses.dot(weight.flatten())

    def gradient(self, y: Tensor, batch: Tensor, weight: Tensor) -> Tensor:
        """(n, d): no row's loss depends on another row, so the gradient of the sum is the stack of the gradients."""
        y = y.detach().requires_grad_()
        (g,) = torch.autograd.grad(self.loss(y, batch, weight), y)
        return g

    def _forward(self, parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        if self._twin is None:
            return self._vmapped(parameters, inputs)
        merged = inputs.flatten(0, 1)
        if self.images:
            merged = merged.contiguous(memory_format=torch.channels_last)
        outputs: Tensor = functional_call(self._twin, parameters, (merged,))
        return outputs.view(*inputs.shape[:2], -1)

    @torch.no_grad()
    def _agrees(self, twin: nn.Module) -> bool:
        """Whether the stacked module computes what the module does; one that looks at its batch's size may not."""
        context = self.context
        x = context.layout.read(context.module)
        y = torch.stack([x, 0.9 * x, 1.1 * x])
        inputs = context.data.dataset.prepare(
            context.x[torch.arange(6, device=context.device).remainder(len(context.x)).view(3, 2)]
        )
        modes = context.module.training, twin.training
        context.module.eval(), twin.eval()
        try:
            together = functional_call(twin, context.layout.unflatten(y), (inputs.flatten(0, 1),)).view(3, 2, -1)
            alone = [
                functional_call(context.module, context.layout.unflatten(row), (inputs[i],)) for i, row in enumerate(y)
            ]
            expected = torch.stack(alone)
            return bool((together - expected).norm() <= 0.03 * expected.norm())  # in TF32, through many layers
        except Exception:  # whatever the model or a kernel may raise
            return False
        finally:
            context.module.train(modes[0]), twin.train(modes[1])


@torch.no_grad()
def draws(context: TrainingContext) -> bool:
    """Whether the model draws random numbers in training, which all threads take from one generator."""
    module = copy.deepcopy(context.module).train()
    with torch.random.fork_rng(devices=[context.device] if context.device.type == "cuda" else []):
        before = torch.get_rng_state()
        module(context.data.dataset.prepare(context.x[:2]))
        return not torch.equal(before, torch.get_rng_state())


def stacked(module: nn.Module, factors: GradientFactors | None) -> nn.Module | None:
    """A copy that is to be called with stacked parameters by `functional_call`; None where a layer is not known."""
    owners = [m for m in module.modules() if next(m.parameters(recurse=False), None) is not None]
    if not all(type(m) in _STACKED and _plain(m) for m in owners):
        return None
    twin = copy.deepcopy(module)
    for layer in list(twin.modules()):
        if type(layer) in _STACKED:
            layer.__class__ = _STACKED[type(layer)]
            layer.factors = factors  # type: ignore[assignment]
    return twin


def _plain(layer: nn.Module) -> bool:
    """Whether the layer is used as the stacked forms expect it."""
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
    """rows·weightᵀ of every client, in low precision where that is asked for."""
    if torch.is_autocast_enabled(rows.device.type):
        low = torch.get_autocast_dtype(rows.device.type)
        weight, rows = weight.to(low), rows.to(low)
    y: Tensor = _Product.apply(rows, weight) if factors is None else _Factored.apply(rows, weight, factors)  # type: ignore[no-untyped-call]
    return y


class _Product(torch.autograd.Function):
    """Left to autograd, the weight's gradient would come transposed."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return torch.bmm(rows, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor]:
        rows, weight = ctx.saved_tensors
        return _by_rows(ctx, g, weight), torch.bmm(g.transpose(1, 2), rows)


class _Factored(torch.autograd.Function):
    """The same, but the weight's gradient is left to whoever wants its factors."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, factors: GradientFactors) -> Tensor:
        ctx.factors = factors
        return _Product.forward(ctx, rows, weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows, weight = ctx.saved_tensors
        taken = ctx.factors.take(weight, g, rows)
        return _by_rows(ctx, g, weight), None if taken else torch.bmm(g.transpose(1, 2), rows), None


def _by_rows(ctx: Any, g: Tensor, weight: Tensor) -> Tensor | None:
    return torch.bmm(g, weight) if ctx.needs_input_grad[0] else None


class _Conv2d(nn.Conv2d):
    factors: GradientFactors | None

    def forward(self, x: Tensor) -> Tensor:
        return self.biased(self.products(x))

    def products(self, x: Tensor) -> Tensor:
        if self._tiles(*x.shape[2:]):
            return self._patches(x)
        if convolution.suits(x, self.weight, self.stride, self.padding, self.dilation, self.groups):
            return convolution.stacked_conv2d(x, self.weight, self.stride[0], self.padding, self.groups)
        if self.kernel_size == (1, 1) and set(self.padding) == {0} and self.groups == 1:
            return self._patches(x[:, :, :: self.stride[0], :: self.stride[1]])
        n, out = self.weight.shape[:2]
        batch, (channels, height, width) = x.shape[0] // n, x.shape[1:]
        side = x.view(n, batch, channels, height, width).transpose(0, 1).reshape(batch, n * channels, height, width)
        y = conv2d(side, self.weight.flatten(0, 1), None, self.stride, self.padding, self.dilation, n * self.groups)
        return y.view(batch, n, out, *y.shape[2:]).transpose(0, 1).reshape(n * batch, out, *y.shape[2:])

    def _tiles(self, height: int, width: int) -> bool:
        """Whether the kernel goes over the image like a tile over a floor, as those of patches do."""
        (kh, kw), plain = self.kernel_size, self.groups == 1 and set(self.dilation) == {1} and set(self.padding) == {0}
        return plain and self.stride == (kh, kw) and height % kh == 0 and width % kw == 0

    def _patches(self, x: Tensor) -> Tensor:
        """One matrix product for each client; images come out channels-last."""
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
    """Does some layers that follow each other in one.

    The bias of a convolution is added and what is below zero cut off after a max-pooling, not before it.  Both keep the
    order of numbers, so the result is the same to the last bit, and there is less to do.
    """

    def forward(self, x: Tensor) -> Tensor:
        layers = list(self)
        while layers:
            conv, *layers = layers
            follow = [type(layer) for layer in layers[:2]]
            if isinstance(conv, _GroupNorm) and follow[:1] == [nn.ReLU]:
                x, layers = conv.cut(x), layers[1:]
            elif isinstance(conv, _Conv2d) and follow == [nn.ReLU, nn.MaxPool2d]:
                relu, pool, *layers = layers
                x = conv.products(x)
                if conv.bias is not None and pooling.suits(x, pool):
                    x = pooling.pooled(x, conv.bias)
                else:
                    x = relu(conv.biased(pool(x)))
            else:
                x = conv(x)
        return x


class _GroupNorm(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.cut(x, relu=False)

    def cut(self, x: Tensor, relu: bool = True) -> Tensor:
        """With a ReLU behind it, or without."""
        if self.affine and normalization.suits(x, self.num_groups):
            return normalization.normalised(x, self.weight, self.bias, self.num_groups, self.eps, relu)
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
        places = x.view(n, x.shape[0] // n, *x.shape[1:]) + shift
        return self.weight.reshape(n * words, size)[places].flatten(0, 1)


def _scaled(y: Tensor, weight: Tensor | None, bias: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """y·weight + bias, every client's rows with its own."""
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
}
