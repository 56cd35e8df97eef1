"""Changing the images of a batch at random, on the device, as they are gathered for training.

In two halves.  `draw` says on the CPU what happens to each example of a job, from the job's own random stream: so it
does not depend on which jobs are trained together.  `apply` does it to any number of images at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.data.dataset import Dataset
from offbeat.errors import ConfigError
from offbeat.options import Natural, Options


class Augment(Options, ABC):
    @abstractmethod
    def check(self, dataset: Dataset) -> None:
        """Refuse data to which this cannot be done."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int16]:
        """Integers (*shape, k) for `shape` examples.  All zero stands for an example that stays as it is."""

    @abstractmethod
    def apply(self, images: Tensor, draws: Tensor) -> Tensor:
        """Stored images (…, channels, height, width), not yet prepared, and draws (…, k) → images of the same kind."""


@dataclass(kw_only=True, frozen=True)
class CropFlip(Augment):
    """Shifted by up to `pad` pixels up or down and left or right, then mirrored with probability ½.

    This is the usual random crop from an image padded with zeros: black, since zero is put in before `prepare`.
    """

    pad: Natural = 4
    """Pixels, most."""

    def check(self, dataset: Dataset) -> None:
        if dataset.vocabulary is not None or len(dataset.shape) != 3:
            kind = "numbers" if dataset.vocabulary is None else "tokens"
            raise ConfigError(
                f"crop-flip needs images of (channels, height, width), not {kind} of shape {list(dataset.shape)}",
                key="name",
            )
        if self.pad >= min(dataset.shape[1:]):
            height, width = dataset.shape[1:]
            raise ConfigError(f"{self.pad} would shift {height}×{width} images out of sight", key="pad")

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int16]:
        """(dy, dx, mirrored or not): the pixel at (0, 0) comes from (dy, dx)."""
        most = [self.pad, self.pad, 1]
        return rng.integers([-self.pad, -self.pad, 0], most, size=(*shape, 3), endpoint=True, dtype=np.int16)

    def apply(self, images: Tensor, draws: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        dy, dx, mirrored = (part.unsqueeze(-1) for part in draws.long().unbind(dim=-1))
        across = torch.arange(width, device=images.device)
        rows = torch.arange(height, device=images.device) + dy  # (…, height): where each row comes from
        columns = torch.where(mirrored != 0, width - 1 - across, across) + dx
        index = rows.clamp(0, height - 1).unsqueeze(-1) * width + columns.clamp(0, width - 1).unsqueeze(-2)
        pixels = images.flatten(start_dim=-2)
        moved = pixels.gather(-1, index.flatten(start_dim=-2).unsqueeze(-2).expand(pixels.shape))
        outside = ((rows < 0) | (rows >= height)).unsqueeze(-1) | ((columns < 0) | (columns >= width)).unsqueeze(-2)
        return moved.view(images.shape).masked_fill(outside.unsqueeze(-3), 0)


AUGMENTS: dict[str, type[Augment]] = {"crop-flip": CropFlip}
