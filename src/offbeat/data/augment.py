"""Random data augmentation, applied on the device to each training batch.

Augmentation has two parts. `draw` chooses on the CPU how to transform each example of a job. It uses the job's own
random stream, so the result does not depend on which jobs are trained together. `apply` then transforms any number of
images at once.
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
from offbeat.options import NonNegativeInt, Options


class Augment(Options, ABC):
    """Interface for data augmentation."""

    @abstractmethod
    def check(self, dataset: Dataset) -> None:
        """Raise a `ConfigError` if this augmentation does not apply to the dataset."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int16]:
        """Draw the random parameters of the transformation.

        Args:
            rng: The random stream of the job.
            shape: The shape of the array of examples.

        Returns:
            Integers of shape (*shape, k). All zeros leave an example unchanged.
        """

    @abstractmethod
    def apply(self, images: Tensor, draws: Tensor) -> Tensor:
        """Transform a batch of images.

        Args:
            images: Stored images (…, channels, height, width), before `Dataset.prepare`.
            draws: The parameters (…, k) that `draw` returned.

        Returns:
            The transformed images, with the same shape and dtype.
        """


@dataclass(kw_only=True, frozen=True)
class CropFlip(Augment):
    """Random crop and horizontal flip.

    Each image is shifted by up to `pad` pixels in either direction, then mirrored with probability ½. This is the usual
    random crop from a zero-padded image. The padding is black, because it is added before `Dataset.prepare`.
    """

    pad: NonNegativeInt = 4
    """Maximum shift in pixels."""

    def check(self, dataset: Dataset) -> None:
        """Raise a `ConfigError` unless the dataset has images larger than `pad`."""
        if dataset.vocabulary is not None or len(dataset.shape) != 3:
            kind = "numbers" if dataset.vocabulary is None else "tokens"
            raise ConfigError(
                f"crop-flip needs images of (channels, height, width), not {kind} of shape {list(dataset.shape)}",
                key="name",
            )
        if self.pad >= min(dataset.shape[1:]):
            height, width = dataset.shape[1:]
            raise ConfigError(
                f"a shift of {self.pad} pixels moves {height}×{width} images out of the frame; use a smaller pad",
                key="pad",
            )

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int16]:
        """Draw (dy, dx, mirrored) for each example, where output pixel (0, 0) comes from input pixel (dy, dx)."""
        high = [self.pad, self.pad, 1]
        return rng.integers([-self.pad, -self.pad, 0], high, size=(*shape, 3), endpoint=True, dtype=np.int16)

    def apply(self, images: Tensor, draws: Tensor) -> Tensor:
        """Shift and mirror the images, filling uncovered pixels with zeros."""
        height, width = images.shape[-2:]
        dy, dx, mirrored = (part.unsqueeze(-1) for part in draws.long().unbind(dim=-1))
        across = torch.arange(width, device=images.device)
        rows = torch.arange(height, device=images.device) + dy  # (…, height): the source of each row
        columns = torch.where(mirrored != 0, width - 1 - across, across) + dx
        index = rows.clamp(0, height - 1).unsqueeze(-1) * width + columns.clamp(0, width - 1).unsqueeze(-2)
        pixels = images.flatten(start_dim=-2)
        moved = pixels.gather(-1, index.flatten(start_dim=-2).unsqueeze(-2).expand(pixels.shape))
        outside = ((rows < 0) | (rows >= height)).unsqueeze(-1) | ((columns < 0) | (columns >= width)).unsqueeze(-2)
        return moved.view(images.shape).masked_fill(outside.unsqueeze(-3), 0)


AUGMENTS: dict[str, type[Augment]] = {"crop-flip": CropFlip}
