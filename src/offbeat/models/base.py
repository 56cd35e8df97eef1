"""What a model is, and what models of one kind share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

from torch import nn

from offbeat.errors import ConfigError
from offbeat.options import Options

Norm = Literal["group", "batch"]


class Model(Options, ABC):
    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        """A module that maps (batch, *shape) to (batch, classes).

        `vocabulary` is how many different tokens there are where inputs are tokens, and None where they are numbers.

        The first dimension is the batch and nothing else, parameters live in standard layers (Linear, Conv2d,
        GroupNorm, Embedding …) and no operation is in place: so that many copies of a module can be run as one.
        """


def refuse_tokens(name: str, vocabulary: int | None) -> None:
    """For models that calculate with their inputs: the number of a token says nothing about it."""
    if vocabulary is not None:
        raise ConfigError(f"{name} takes numbers, not tokens (here {vocabulary} different ones); use lstm", key="name")


def image(name: str, shape: tuple[int, ...], vocabulary: int | None, least: int) -> tuple[int, int, int]:
    """Channels, height and width of an image that is at least so high and wide."""
    refuse_tokens(name, vocabulary)
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ConfigError(
            f"{name} needs inputs of (channels, height ≥ {least}, width ≥ {least}), not {list(shape)}", key="name"
        )
    channels, height, width = shape
    return channels, height, width


def normalization(kind: Norm, groups: int, width: int) -> Callable[[int], nn.Module]:
    """What makes the normalising layers of a model whose numbers of channels are multiples of `width`."""
    if kind == "batch":
        return nn.BatchNorm2d
    if width % groups:
        raise ConfigError(f"{groups} groups do not divide {width} channels evenly", key="groups")
    return lambda channels: nn.GroupNorm(groups, channels)
