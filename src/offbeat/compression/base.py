"""What travels instead of a whole vector, and exactly how many bytes it takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from offbeat.options import Options
from offbeat.random import torch_stream
from offbeat.vectors import Layout


class Codec(Options, ABC):
    """A lossy code for vectors.

    `encode` gives the very bytes that would travel, `decode` reads them.  The simulator only needs what comes out at
    the other end and how long it was: `carry` and `size`, which every codec computes without going through bytes.  A
    test holds the two ways against each other.
    """

    adjustable: ClassVar[bool] = False
    """Whether the compression rate can be chosen per job."""

    @abstractmethod
    def size(self, layout: Layout, rate: float | None = None) -> int:
        """Bytes of an encoded vector of this layout.  It never depends on the values, so a trip's time is known
        ahead."""

    @abstractmethod
    def carry(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> Tensor:
        """decode(encode(x)); x itself is never changed.  `rate` overrides the codec's own, where it has one."""

    @abstractmethod
    def encode(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> bytes: ...

    @abstractmethod
    def decode(self, payload: bytes, layout: Layout) -> Tensor: ...


def noise(x: Tensor, seed: int) -> Tensor:
    """Uniform numbers for stochastic rounding."""
    return torch.rand(x.shape, generator=torch_stream(seed, "codec", device=x.device), device=x.device, dtype=x.dtype)


def to_bytes(t: Tensor) -> bytes:
    array: Any = t.detach().cpu().contiguous().numpy()
    return bytes(array.tobytes())
