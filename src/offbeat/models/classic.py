"""Small models for vectors and images, each fitted to the shape of its input."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from torch import nn

from offbeat.models.base import Model, image, refuse_tokens
from offbeat.options import Count


@dataclass(kw_only=True, frozen=True)
class LR(Model):
    """Multinomial logistic regression."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        refuse_tokens("lr", vocabulary)
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


@dataclass(kw_only=True, frozen=True)
class MLP(Model):
    """Fully connected layers with ReLU between them."""

    hidden: tuple[Count, ...] = (64,)

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        refuse_tokens("mlp", vocabulary)
        widths = (math.prod(shape), *self.hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


@dataclass(kw_only=True, frozen=True)
class CNN(Model):
    """The CNN of the CA²FL experiments: two 5×5 convolutions, each pooled by two, and three dense layers.

    2,218,314 parameters for 3×32×32 inputs and ten classes.
    """

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        channels, height, width = image("cnn", shape, vocabulary, least=4)
        return nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(64 * (height // 4) * (width // 4), 512), nn.ReLU(),
            nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, classes),
        )  # fmt: skip
