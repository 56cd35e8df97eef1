"""ConvMixer-256-8."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from offbeat.errors import ConfigError
from offbeat.models import ConvMixer


@pytest.mark.parametrize("model", [ConvMixer(), ConvMixer(norm="batch")], ids=str)
def test_the_size_by_hand(model: ConvMixer) -> None:
    module = model.build((3, 32, 32), 10)
    stem = 3 * 2 * 2 * 256 + 256 + 2 * 256
    layer = (5 * 5 * 256 + 256 + 2 * 256) + (256 * 256 + 256 + 2 * 256)
    assert sum(p.numel() for p in module.parameters()) == stem + 8 * layer + 257 * 10 == 594_186


def test_patches_then_one_size() -> None:
    module = ConvMixer(dim=8, depth=3, patch=4, groups=4).build((3, 32, 24), 10)
    assert isinstance(module, nn.Sequential)
    for end in range(1, 16):
        assert module[:end](torch.zeros(2, 3, 32, 24)).shape == (2, 8, 8, 6)
    depthwise = [m for m in module.modules() if isinstance(m, nn.Conv2d) and m.groups == 8]
    assert [m.weight.shape for m in depthwise] == [(8, 1, 5, 5)] * 3


def test_a_residual_skips_only_the_depthwise_convolution() -> None:
    """With the weight of its norm at zero, that part returns its inputs."""
    module = ConvMixer(dim=4, depth=1, groups=2).build((1, 8, 8), 2)
    assert isinstance(module, nn.Sequential)
    norm = [m for m in module[3].modules() if isinstance(m, nn.GroupNorm)][-1]
    nn.init.zeros_(norm.weight)
    x = torch.randn(2, 4, 4, 4)
    assert torch.equal(module[3](x), x)
    assert isinstance(module[4], nn.Conv2d)


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (ConvMixer(), (784,), "name: convmixer needs inputs of (channels, height ≥ 2, width ≥ 2), not [784]"),
        (ConvMixer(patch=4), (3, 32, 30), "patch: 4 does not divide 32×30 inputs evenly"),
        (ConvMixer(kernel=4), (3, 32, 32), "kernel: 4 is even: only an odd kernel preserves the image size"),
        (ConvMixer(dim=40), (3, 32, 32), "groups: 32 groups do not divide 40 channels evenly"),
    ],
)
def test_unsuitable_data_is_rejected(model: ConvMixer, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model.build(shape, 10)
    assert str(caught.value) == message
