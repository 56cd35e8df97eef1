"""Base class of the codecs, which encode vectors for transmission."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from offbeat.options import Options
from offbeat.random import torch_stream
from offbeat.vectors import Layout


class Codec(Options, ABC):
    """Interface for codecs, which may be lossy.

    `encode` returns the transmitted bytes and `decode` reads them. The simulator only needs the decoded vector and the
    number of bytes: `carry` and `size` compute these without encoding. A test checks that both ways agree.
    """

    adjustable: ClassVar[bool] = False
    """Whether the compression rate can be chosen per job."""
    lossless: ClassVar[bool] = False
    """Whether vectors travel uncompressed, so that the decoded vector is the vector itself."""

    @abstractmethod
    def size(self, layout: Layout, rate: float | None = None) -> int:
        """Return the number of bytes of an encoded vector.

        The size does not depend on the values, so the duration of a transfer is known in advance.

        Args:
            layout: The layout of the vector.
            rate: Compression rate that replaces the rate of the codec, if it has one.
        """

    @abstractmethod
    def carry(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> Tensor:
        """Return decode(encode(x)) without modifying x.

        Args:
            x: The vector.
            layout: Its layout.
            seed: The seed of a stochastic codec.
            rate: Compression rate that replaces the rate of the codec, if it has one.
        """

    @abstractmethod
    def encode(self, x: Tensor, layout: Layout, seed: int, rate: float | None = None) -> bytes:
        """Return the encoded vector.

        Args:
            x: The vector.
            layout: Its layout.
            seed: The seed of a stochastic codec.
            rate: Compression rate that replaces the rate of the codec, if it has one.
        """

    @abstractmethod
    def decode(self, payload: bytes, layout: Layout) -> Tensor:
        """Return the vector of an encoded payload.

        Args:
            payload: The bytes from `encode`.
            layout: The layout of the vector.

        Raises:
            ValueError: The payload is malformed.
        """


def noise(x: Tensor, seed: int) -> Tensor:
    """Return uniform random numbers for stochastic rounding."""
    return torch.rand(x.shape, generator=torch_stream(seed, "codec", device=x.device), device=x.device, dtype=x.dtype)


def to_bytes(t: Tensor) -> bytes:
    """Return the contents of a tensor as bytes."""
    array: Any = t.detach().cpu().contiguous().numpy()
    return bytes(array.tobytes())
