"""The models that offbeat brings, each fitted to the shape of its input."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import nn

from offbeat.errors import ConfigError
from offbeat.options import Count, Options


class Model(Options, ABC):
    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """A module that maps (batch, *shape) to (batch, classes)."""


@dataclass(kw_only=True, frozen=True)
class LR(Model):
    """Multinomial logistic regression."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


@dataclass(kw_only=True, frozen=True)
class MLP(Model):
    """Fully connected layers with ReLU between them."""

    hidden: tuple[Count, ...] = (64,)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
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

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(shape) != 3 or min(shape[1:]) < 4:
            raise ConfigError(f"cnn needs inputs of (channels, height ≥ 4, width ≥ 4), not {list(shape)}", key="name")
        channels, height, width = shape
        return nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(64 * (height // 4) * (width // 4), 512), nn.ReLU(),
            nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, classes),
        )  # fmt: skip
