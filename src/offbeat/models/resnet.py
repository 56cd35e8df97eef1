"""ResNet-18 (He et al., CVPR 2016) in the form for small images: a 3×3 stem and no pooling before the blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from offbeat.models.base import Model, Norm, image, normalization
from offbeat.options import PositiveInt


@dataclass(kw_only=True, frozen=True)
class ResNet18(Model):
    """Four stages of two blocks, each stage twice as wide as the last and, from the second on, half as high.

    11,173,962 parameters for 3×32×32 inputs and ten classes, with either norm.  GroupNorm stands where the paper has
    BatchNorm, since batch statistics of unlike clients cannot be averaged well; 32 groups are Wu & He's (ECCV 2018).
    """

    width: PositiveInt = 64
    """Channels of the first stage."""
    norm: Norm = "group"
    """GroupNorm or BatchNorm."""
    groups: PositiveInt = 32
    """Groups of a GroupNorm."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        channels, _, _ = image("resnet18", shape, vocabulary, least=8)
        norm = normalization(self.norm, self.groups, self.width)
        layers: list[nn.Module] = [_conv(channels, self.width, 3, 1), norm(self.width), nn.ReLU()]
        before = self.width
        for stage in range(4):
            after = self.width << stage
            layers += [Block(before, after, 2 if stage else 1, norm), Block(after, after, 1, norm)]
            before = after
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class Block(nn.Module):
    """Two 3×3 convolutions, and a way round them; a 1×1 convolution on that way where the shape changes."""

    def __init__(self, before: int, after: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(before, after, 3, stride), norm(after), nn.ReLU(), _conv(after, after, 3, 1), norm(after)
        )
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(_conv(before, after, 1, stride), norm(after))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return outputs


def _conv(before: int, after: int, kernel: int, stride: int) -> nn.Conv2d:
    """Without bias, which the norm behind it would take away again."""
    return nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)
