"""ResNet-18 in its form for small images."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from offbeat.errors import ConfigError
from offbeat.models import ResNet18


@pytest.mark.parametrize("model", [ResNet18(), ResNet18(norm="batch")], ids=str)
def test_the_size_that_is_published(model: ResNet18) -> None:
    module = model.build((3, 32, 32), 10)
    assert sum(p.numel() for p in module.parameters()) == 11_173_962
    convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) == 17 + 3, "with the linear layer eighteen, and three on the ways round"
    assert (convolutions[0].kernel_size, convolutions[0].stride) == ((3, 3), (1, 1))
    assert not any(isinstance(layer, nn.MaxPool2d) for layer in module.modules())


def test_three_times_half_as_high() -> None:
    module = ResNet18(width=8, groups=4).build((3, 32, 32), 10)
    assert isinstance(module, nn.Sequential)
    shapes = [tuple(module[:end](torch.zeros(2, 3, 32, 32)).shape) for end in (3, 5, 7, 9, 11)]
    assert shapes == [(2, 8, 32, 32), (2, 8, 32, 32), (2, 16, 16, 16), (2, 32, 8, 8), (2, 64, 4, 4)]


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 8, 8), (4, 9, 17)])
def test_other_images(shape: tuple[int, ...]) -> None:
    assert ResNet18(width=4, groups=2).build(shape, 3)(torch.zeros(2, *shape)).shape == (2, 3)


@pytest.mark.parametrize("shape", [(784,), (28, 28), (3, 7, 32), (1, 1, 28, 28)])
def test_inputs_that_are_not_images_or_too_small_are_rejected(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="resnet18 needs inputs of") as caught:
        ResNet18().build(shape, 10)
    assert caught.value.key == "name"


def test_groups_divide_the_channels() -> None:
    with pytest.raises(ConfigError) as caught:
        ResNet18(width=48).build((3, 32, 32), 10)
    assert str(caught.value) == "groups: 32 groups do not divide 48 channels evenly"
    with pytest.raises(ConfigError, match="norm: 'layer' is not one of 'group', 'batch'"):
        ResNet18(norm="layer")  # type: ignore[arg-type]
