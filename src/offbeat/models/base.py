"""Base class of the models and helpers to build them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

from torch import nn

from offbeat.errors import ConfigError
from offbeat.options import Options

Norm = Literal["group", "batch"]


class Model(Options, ABC):
    """Interface for models."""

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        """Return a new module that maps (batch, *shape) to (batch, classes).

        Many copies of the module can be run as one if the first dimension is always the batch, all parameters are in
        standard layers (Linear, Conv2d, GroupNorm, Embedding …) and no operation is in place.

        Args:
            shape: Shape of one input.
            classes: Number of classes.
            vocabulary: Number of distinct tokens, or None if the inputs are numbers.

        Raises:
            ConfigError: The model does not support such inputs.
        """


def reject_tokens(name: str, vocabulary: int | None) -> None:
    """Raise a `ConfigError` if the inputs are tokens, which a model without an embedding cannot use."""
    if vocabulary is not None:
        raise ConfigError(f"{name} takes numbers, not tokens (the vocabulary has {vocabulary}); use lstm", key="name")


def image_shape(name: str, shape: tuple[int, ...], vocabulary: int | None, min_size: int) -> tuple[int, int, int]:
    """Return the channels, height and width of image inputs.

    Args:
        name: Name of the model, for the error message.
        shape: Shape of one input.
        vocabulary: Number of distinct tokens, or None if the inputs are numbers.
        min_size: Minimum height and width.

    Raises:
        ConfigError: The inputs are not images or are too small.
    """
    reject_tokens(name, vocabulary)
    if len(shape) != 3 or min(shape[1:]) < min_size:
        raise ConfigError(
            f"{name} needs inputs of (channels, height ≥ {min_size}, width ≥ {min_size}), not {list(shape)}", key="name"
        )
    channels, height, width = shape
    return channels, height, width


def normalization(kind: Norm, groups: int, width: int) -> Callable[[int], nn.Module]:
    """Return a function that creates the normalization layer for a number of channels.

    Args:
        kind: GroupNorm or BatchNorm.
        groups: Number of groups of a GroupNorm.
        width: A number that divides the channels of every layer.

    Raises:
        ConfigError: The groups do not divide the channels.
    """
    if kind == "batch":
        return nn.BatchNorm2d
    if width % groups:
        raise ConfigError(f"{groups} groups do not divide {width} channels evenly", key="groups")
    return lambda channels: nn.GroupNorm(groups, channels)
