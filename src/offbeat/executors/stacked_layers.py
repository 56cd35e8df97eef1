"""Layers that take stacked parameters (n, …) and the concatenated batches of clients (n·B, …).

This is the mathematics of `torch.vmap` without its interpreter, and an ordinary program to compile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, gelu, group_norm, layer_norm, rms_norm

from offbeat.client.local_step import GradientFactors
from offbeat.executors import gpu
from offbeat.executors.affine import affine, product
from offbeat.executors.batch_norm import BATCH_NORMS, StackedBatchNorm, ValidExamples
from offbeat.executors.stacked_attention import StackedAttention
from offbeat.models.convmixer import Residual
from offbeat.models.lora import is_transposed_linear
from offbeat.models.resnet import Block


def stacked_kind(layer: nn.Module) -> type[nn.Module] | None:
    """Return the stacked form of a layer; None if its kind or its options have none."""
    if is_transposed_linear(layer):
        return _TransposedLinear
    return _STACKED.get(type(layer)) if _plain(layer) else None


def _plain(layer: nn.Module) -> bool:
    """Return whether a layer has only options that its stacked form supports."""
    if isinstance(layer, nn.Conv2d):
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and not layer.scale_grad_by_freq
    if isinstance(layer, nn.MultiheadAttention):
        return layer._qkv_same_embed_dim and layer.bias_k is None and not layer.add_zero_attn
    return True


class _Linear(nn.Linear):
    factors: GradientFactors | None

    def forward(self, x: Tensor) -> Tensor:
        return affine(x, self.weight, self.bias, self.factors)


class _TransposedLinear(nn.Module):
    """The linear layer of GPT-2 in transformers, `Conv1D`, whose weight is (in, out); never built, but assumed."""

    weight: Tensor
    bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        n, width, out = self.weight.shape
        y = torch.bmm(x.reshape(n, -1, width), self.weight)
        return (y + self.bias[:, None].to(y.dtype)).reshape(*x.shape[:-1], out)


class _Conv2d(nn.Conv2d):
    factors: GradientFactors | None

    def forward(self, x: Tensor) -> Tensor:
        return self.biased(self.products(x))

    def products(self, x: Tensor) -> Tensor:
        if self._tiles(*x.shape[2:]):
            return self._patches(x)
        y = gpu.conv2d(x, *self._geometry)
        if y is not None:
            return y
        if self.kernel_size == (1, 1) and set(self.padding) == {0} and self.groups == 1:
            return self._patches(x[:, :, :: self.stride[0], :: self.stride[1]])
        n, out = self.weight.shape[:2]
        batch, (channels, height, width) = x.shape[0] // n, x.shape[1:]
        grouped = x.view(n, batch, channels, height, width).transpose(0, 1).reshape(batch, n * channels, height, width)
        y = conv2d(grouped, self.weight.flatten(0, 1), None, self.stride, self.padding, self.dilation, n * self.groups)
        return y.view(batch, n, out, *y.shape[2:]).transpose(0, 1).reshape(n * batch, out, *y.shape[2:])

    def products_and_input(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return the products, or None where no kernel computes them, and x for its other uses."""
        found = None if self._tiles(*x.shape[2:]) else gpu.conv2d_and_input(x, *self._geometry)
        return (None, x) if found is None else found

    @property
    def _geometry(self) -> tuple[Any, ...]:
        return self.weight, self.stride, self.padding, self.dilation, self.groups

    def _tiles(self, height: int, width: int) -> bool:
        """Return whether the kernel tiles the image without overlap or remainder, as in a patch embedding."""
        (kh, kw), plain = self.kernel_size, self.groups == 1 and set(self.dilation) == {1} and set(self.padding) == {0}
        return plain and self.stride == (kh, kw) and height % kh == 0 and width % kw == 0

    def _patches(self, x: Tensor) -> Tensor:
        """Convolve with one matrix product per client; the output is channels-last."""
        n, out, channels, kh, kw = self.weight.shape
        images, _, height, width = x.shape
        tiles = x.reshape(images, channels, height // kh, kh, width // kw, kw).permute(0, 2, 4, 1, 3, 5)
        y = product(tiles.reshape(n, -1, channels * kh * kw), self.weight.flatten(2), self.factors)
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
        return self.plus(x)

    def plus(self, x: Tensor, shortcut: nn.Module | None = None, last: nn.ReLU | None = None) -> Tensor:
        """Return the output for x, with that of a shortcut added and a ReLU applied to the sum."""
        layers, residual, products = list(self), None, None
        if shortcut is not None:
            again = x
            if layers and isinstance(layers[0], _Conv2d):
                products, again = layers[0].products_and_input(x)
            residual = shortcut(again)
        while layers:
            layer, *layers = layers
            following = [type(other) for other in layers[:2]]
            normalized = _NormalizedBatch([layer, *layers])
            if normalized.length:
                layers = layers[normalized.length - 1 :]
                if not layers and residual is not None and normalized.relu is None:
                    return normalized(x, products, residual, last)
                x = normalized(x, products)
            elif isinstance(layer, _GroupNorm) and following[:1] == [nn.ReLU]:
                x, layers = layer.normalize(x), layers[1:]
            elif isinstance(layer, _Conv2d) and following == [nn.ReLU, nn.MaxPool2d]:
                relu, pool, *layers = layers
                assert isinstance(pool, nn.MaxPool2d)
                x = layer.products(x) if products is None else products
                y = gpu.bias_relu_max_pool(x, layer.bias, pool) if layer.bias is not None else None
                x = relu(layer.biased(pool(x))) if y is None else y
            elif products is not None:
                assert isinstance(layer, _Conv2d)
                x = layer.biased(products)
            else:
                x = layer(x)
            products = None
        return _summed(x, residual, last)


def _summed(x: Tensor, residual: Tensor | None, relu: nn.ReLU | None) -> Tensor:
    x = x if residual is None else x + residual
    return x if relu is None else relu(x)


class _Residual(Residual):
    def forward(self, x: Tensor) -> Tensor:
        return self.body.plus(x, nn.Identity()) if isinstance(self.body, _Sequential) else super().forward(x)


class _Block(Block):
    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(self.body, _Sequential):
            return super().forward(x)
        return self.body.plus(x, self.shortcut, self.relu)


class _NormalizedBatch:
    """A BatchNorm layer of a sequence with the layers around it that one kernel can compute.

    These are the bias of a convolution and a GELU before it, and a ReLU after it.

    Args:
        layers: The rest of the sequence.

    Attributes:
        length: Number of layers that it covers; 0 if the sequence does not begin with such layers.
    """

    def __init__(self, layers: list[nn.Module]) -> None:
        rest = layers[:4]
        self.convolution = rest.pop(0) if isinstance(rest[0], _Conv2d) else None
        self.gelu = rest.pop(0) if rest and isinstance(rest[0], nn.GELU) and rest[0].approximate == "none" else None
        self.norm = rest.pop(0) if rest and isinstance(rest[0], StackedBatchNorm) else None
        self.relu = rest.pop(0) if rest and type(rest[0]) is nn.ReLU else None
        self.length = min(4, len(layers)) - len(rest) if self.norm is not None else 0

    def __call__(
        self, x: Tensor, products: Tensor | None = None, residual: Tensor | None = None, relu: nn.ReLU | None = None
    ) -> Tensor:
        """Compute the layers, one by one where the kernel does not apply.

        Args:
            x: Images of all clients.
            products: The products of the convolution, if they are known.
            residual: Numbers to add to the output of the normalization, or None; only without a ReLU of the sequence.
            relu: A ReLU of the sum, or None.
        """
        assert isinstance(self.norm, StackedBatchNorm)
        convolution = self.convolution if isinstance(self.convolution, _Conv2d) else None
        if convolution is not None:
            x = convolution.products(x) if products is None else products
        bias = None if convolution is None else convolution.bias
        last = self.relu is not None or relu is not None
        y = self.norm.fused(x, bias, gelu=self.gelu is not None, relu=last, residual=residual)
        if y is not None:
            return y
        x = x if convolution is None else convolution.biased(x)
        x = self.norm.in_steps(x if self.gelu is None else gelu(x))
        return _summed(x if self.relu is None else x.relu(), residual, relu)


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
        if self.weight is None:
            return y
        shape = (*(1,) * (x.ndim - len(self.normalized_shape)), *self.normalized_shape)
        n = len(self.weight)
        rows, weight = y.view(n, y.shape[0] // n, *y.shape[1:]), self.weight.view(n, *shape)
        out = rows * weight if self.bias is None else torch.addcmul(self.bias.view(n, *shape), rows, weight)
        return out.view_as(y)


class _RMSNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        y = rms_norm(x, self.normalized_shape, None, self.eps)
        return _scaled(
            y, self.weight, None, (*(1,) * (x.ndim - 1 - len(self.normalized_shape)), *self.normalized_shape)
        )


class _Embedding(nn.Embedding):
    valid: ValidExamples
    shared = False  # whether the indices are the same for all examples, such as positions

    def forward(self, x: Tensor) -> Tensor:
        n, words, size = self.weight.shape
        if not self.shared and len(x) != self.valid.examples:
            self.shared = True
        if self.shared:
            rows = self.weight[:, x[0] if len(x) == 1 else x]
            return rows[:, None].expand(-1, self.valid.examples // n, *rows.shape[1:]).flatten(0, 1)
        shift = torch.arange(n, device=x.device).mul(words).view(n, *(1,) * x.ndim)
        indices = x.view(n, x.shape[0] // n, *x.shape[1:]) + shift
        return unpadded(self.weight.reshape(n * words, size)[indices].flatten(0, 1), x, self.padding_idx)


class PaddedEmbedding(nn.Embedding):
    """An embedding for `torch.vmap`, under which the row of the padding would be trained."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows at the indices."""
        return unpadded(self.weight[x], x, self.padding_idx)


def unpadded(rows: Tensor, x: Tensor, padding: int | None) -> Tensor:
    """Return the rows of an embedding, without a gradient where the index is that of the padding."""
    return rows if padding is None else torch.where((x == padding)[..., None], rows.detach(), rows)


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
    Residual: _Residual,
    Block: _Block,
    nn.GroupNorm: _GroupNorm,
    nn.LayerNorm: _LayerNorm,
    nn.RMSNorm: _RMSNorm,
    nn.MultiheadAttention: StackedAttention,
    nn.Embedding: _Embedding,
    **dict.fromkeys(BATCH_NORMS, StackedBatchNorm),
}

CONTAINERS = (nn.Sequential, Residual, Block)  # layers without parameters of their own
STACKED_LAYERS = sorted(kind.__name__ for kind in _STACKED if kind not in CONTAINERS)
