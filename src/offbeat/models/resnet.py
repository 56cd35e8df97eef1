"""ResNet-18 (He et al., CVPR 2016) for small images: a 3×3 stem and no pooling before the blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from offbeat.models.base import Model, Norm, image_shape, normalization
from offbeat.options import PositiveInt


@dataclass(kw_only=True, frozen=True)
class ResNet18(Model):
    """ResNet-18 for small images: four stages of two blocks; each stage doubles the width and halves the resolution.

    It has 11,173,962 parameters for 3×32×32 inputs and ten classes, with either norm. The default is GroupNorm instead
    of the paper's BatchNorm, because batch statistics of non-IID clients do not average well; 32 groups as in Wu and He
    (ECCV 2018).
    """

    width: PositiveInt = 64
    """Number of channels of the first stage."""
    norm: Norm = "group"
    """GroupNorm or BatchNorm."""
    groups: PositiveInt = 32
    """Number of groups of a GroupNorm."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        """Return the ResNet."""
        channels, _, _ = image_shape("resnet18", shape, vocabulary, min_size=8)
        norm = normalization(self.norm, self.groups, self.width)
        layers: list[nn.Module] = [_conv(channels, self.width, 3, 1), norm(self.width), nn.ReLU()]
        before = self.width
        for stage in range(4):
            after = self.width << stage
            layers += [Block(before, after, 2 if stage else 1, norm), Block(after, after, 1, norm)]
            before = after
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class Block(nn.Module):
    """Two 3×3 convolutions with a shortcut, which is a 1×1 convolution if the shape changes.

    Args:
        before: Number of input channels.
        after: Number of output channels.
        stride: Stride of the first convolution.
        norm: Creates the normalization layer for a number of channels.
    """

    def __init__(self, before: int, after: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(before, after, 3, stride), norm(after), nn.ReLU(), _conv(after, after, 3, 1), norm(after)
        )
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(_conv(before, after, 1, stride), norm(after))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(body(x) + shortcut(x))."""
        outputs: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return outputs


def _conv(before: int, after: int, kernel: int, stride: int) -> nn.Conv2d:
    """Return a convolution without bias, which the following normalization would cancel."""
    return nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)
