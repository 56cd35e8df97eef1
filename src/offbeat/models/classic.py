"""Small models for vectors and images."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from torch import nn

from offbeat.models.base import Model, image_shape, reject_tokens
from offbeat.options import Interval, PositiveInt

Padding = Annotated[int, Interval(ge=0, le=2)]


@dataclass(kw_only=True, frozen=True)
class LR(Model):
    """Multinomial logistic regression."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        """Return a linear layer."""
        reject_tokens("lr", vocabulary)
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


@dataclass(kw_only=True, frozen=True)
class MLP(Model):
    """Fully connected layers with ReLU between them."""

    hidden: tuple[PositiveInt, ...] = (64,)
    """Widths of the hidden layers."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        """Return the fully connected network."""
        reject_tokens("mlp", vocabulary)
        return nn.Sequential(nn.Flatten(), *_dense((math.prod(shape), *self.hidden, classes)))


@dataclass(kw_only=True, frozen=True)
class CNN(Model):
    """The CNN of the CA²FL experiments: two 5×5 convolutions, each with 2×2 pooling, and three dense layers.

    It has 2,218,314 parameters for 3×32×32 inputs and ten classes. MIFA uses padding = 0 and hidden = [512]. FedLuck
    uses channels = [32, 32], padding = [2, 0] and hidden = [256] for Fashion-MNIST.
    """

    channels: tuple[PositiveInt, PositiveInt] = (32, 64)
    """Channels of the convolutions."""
    padding: Padding | tuple[Padding, Padding] = 2
    """Zero padding of both convolutions, or of each."""
    hidden: tuple[PositiveInt, ...] = (512, 128)
    """Widths of the hidden dense layers."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        """Return the convolutional network."""
        one, two = self.padding if isinstance(self.padding, tuple) else (self.padding, self.padding)
        lost = (4 - 2 * one, 4 - 2 * two)  # pixels lost in the convolutions
        channels, height, width = image_shape("cnn", shape, vocabulary, min_size=4 + lost[0] + 2 * lost[1])
        height, width = (((size - lost[0]) // 2 - lost[1]) // 2 for size in (height, width))
        first, second = self.channels
        return nn.Sequential(
            nn.Conv2d(channels, first, 5, padding=one), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(first, second, 5, padding=two), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            *_dense((second * height * width, *self.hidden, classes)),
        )  # fmt: skip


@dataclass(kw_only=True, frozen=True)
class VGG11s(Model):
    """The VGG-11 of the FedLuck experiments: a small one, with 32 to 128 channels, without normalization and dropout.

    It has eight 3×3 convolutions, five 2×2 poolings and three dense layers of 128: 865,482 parameters for 3×32×32
    inputs and ten classes. As in the authors' code, the weights of the convolutions are drawn from
    N(0, 2/(9·channels out)), and their biases are zero.
    """

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        """Return the VGG-11."""
        before, height, width = image_shape("vgg11s", shape, vocabulary, min_size=32)
        layers: list[nn.Module] = []
        for stage in ((32,), (64,), (128, 128), (128, 128), (128, 128)):
            for after in stage:
                layers += [_he_normal(nn.Conv2d(before, after, 3, padding=1)), nn.ReLU()]
                before = after
            layers.append(nn.MaxPool2d(2))
        pixels = (height >> 5) * (width >> 5)
        return nn.Sequential(*layers, nn.Flatten(), *_dense((before * pixels, 128, 128, classes)))


def _he_normal(layer: nn.Conv2d) -> nn.Conv2d:
    """Draw the weights of a convolution as He et al. (ICCV 2015) for its outputs, and set its bias to zero."""
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def _dense(widths: Sequence[int]) -> list[nn.Module]:
    """Return linear layers of the given widths with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers[:-1]
