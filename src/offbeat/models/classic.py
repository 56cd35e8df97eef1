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

    It has 2,218,314 parameters for 3×32×32 inputs and ten classes. MIFA uses padding = 0 and hidden = [512].
    """

    padding: Annotated[int, Interval(ge=0, le=2)] = 2
    """Zero padding of both convolutions."""
    hidden: tuple[PositiveInt, ...] = (512, 128)
    """Widths of the hidden dense layers."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        """Return the convolutional network."""
        shrunk = 4 - 2 * self.padding  # pixels lost in each convolution
        channels, height, width = image_shape("cnn", shape, vocabulary, min_size=4 + 3 * shrunk)
        height, width = (((size - shrunk) // 2 - shrunk) // 2 for size in (height, width))
        return nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=self.padding), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=self.padding), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            *_dense((64 * height * width, *self.hidden, classes)),
        )  # fmt: skip


def _dense(widths: Sequence[int]) -> list[nn.Module]:
    """Return linear layers of the given widths with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers[:-1]
