"""ConvMixer (Trockman and Kolter, *Patches Are All You Need?*, 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from offbeat.errors import ConfigError
from offbeat.models.base import Model, Norm, image_shape, normalization
from offbeat.options import PositiveInt


@dataclass(kw_only=True, frozen=True)
class ConvMixer(Model):
    """ConvMixer: a patch embedding and `depth` blocks of a residual depthwise convolution and a 1×1 convolution.

    The AFGA experiments use ConvMixer-256-8 on CIFAR-10 but do not state kernel and patch size; 5 and 2 are those of
    the ConvMixer authors' CIFAR-10 code. The model has 594,186 parameters for 3×32×32 inputs and ten classes, with
    either norm. The default is GroupNorm; the original uses BatchNorm.
    """

    dim: PositiveInt = 256
    """Number of channels."""
    depth: PositiveInt = 8
    """Number of blocks."""
    kernel: PositiveInt = 5
    """Kernel size of the depthwise convolution; odd."""
    patch: PositiveInt = 2
    """Side of a patch in pixels."""
    norm: Norm = "group"
    """GroupNorm or BatchNorm."""
    groups: PositiveInt = 32
    """Number of groups of a GroupNorm."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        """Return the ConvMixer."""
        channels, height, width = image_shape("convmixer", shape, vocabulary, min_size=self.patch)
        if height % self.patch or width % self.patch:
            raise ConfigError(f"{self.patch} does not divide {height}×{width} inputs evenly", key="patch")
        if self.kernel % 2 == 0:
            raise ConfigError(f"{self.kernel} is even: only an odd kernel preserves the image size", key="kernel")
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
    """A module with a residual connection.

    Args:
        body: The module.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Return body(x) + x."""
        outputs: Tensor = self.body(x) + x
        return outputs
