"""ConvMixer (Trockman & Kolter, "Patches Are All You Need?", 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from offbeat.errors import ConfigError
from offbeat.models.base import Model, Norm, image, normalization
from offbeat.options import PositiveInt


@dataclass(kw_only=True, frozen=True)
class ConvMixer(Model):
    """Patches, then `depth` times: a depthwise convolution with a way round it, and a 1×1 convolution.

    The AFGA experiments use ConvMixer-256-8 on CIFAR-10 and say nothing of kernel and patch: 5 and 2 here are those of
    the authors' own CIFAR-10 code.  594,186 parameters for 3×32×32 inputs and ten classes, with either norm.  The
    original has BatchNorm where GroupNorm stands here.
    """

    dim: PositiveInt = 256
    """Channels."""
    depth: PositiveInt = 8
    """How often."""
    kernel: PositiveInt = 5
    """Of the depthwise convolution; odd."""
    patch: PositiveInt = 2
    """Pixels of a patch's side."""
    norm: Norm = "group"
    """GroupNorm or BatchNorm."""
    groups: PositiveInt = 32
    """Groups of a GroupNorm."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        channels, height, width = image("convmixer", shape, vocabulary, least=self.patch)
        if height % self.patch or width % self.patch:
            raise ConfigError(f"{self.patch} does not divide {height}×{width} inputs evenly", key="patch")
        if self.kernel % 2 == 0:
            raise ConfigError(f"{self.kernel} is even: an odd kernel keeps the image's size", key="kernel")
        norm = normalization(self.norm, self.groups, self.dim)

        def mixer() -> list[nn.Module]:
            space = nn.Conv2d(self.dim, self.dim, self.kernel, padding=self.kernel // 2, groups=self.dim)
            return [
                Residual(nn.Sequential(space, nn.GELU(), norm(self.dim))),
                nn.Conv2d(self.dim, self.dim, 1), nn.GELU(), norm(self.dim),
            ]  # fmt: skip

        return nn.Sequential(
            nn.Conv2d(channels, self.dim, self.patch, self.patch), nn.GELU(), norm(self.dim),
            *(layer for _ in range(self.depth) for layer in mixer()),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(self.dim, classes),
        )  # fmt: skip


class Residual(nn.Module):
    """A module and a way round it."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.body(x) + x
        return outputs
