"""Base class of the aggregators, which combine the updates of a step into one vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from offbeat.options import Options
from offbeat.stateful import Stateful


@dataclass(kw_only=True)
class Aggregator(Options, Stateful, ABC):
    """Interface for aggregators. The algorithm calls `add` for every update and `aggregate` for the step."""

    supports_weights: ClassVar[bool] = False
    """Whether the updates may have different weights."""

    def check(self, updates: int | None) -> None:
        """Raise a `ConfigError` if the aggregator cannot work with this number of updates per step.

        Args:
            updates: The number of updates per step, or None if it varies.
        """

    @abstractmethod
    def start(self, like: Tensor, seed: int = 0, updates: int | None = None) -> None:
        """Discard all state and prepare for vectors of the given kind.

        Args:
            like: A vector with the shape, dtype and device of the updates.
            seed: The seed of the run.
            updates: The number of updates per step, or None if it varies.
        """

    @abstractmethod
    def add(self, client: int, value: Tensor, scale: float = 1.0, weight: float = 1.0) -> None:
        """Add scale·value to the buffer.

        Args:
            client: The client of the update.
            value: The update. It is never modified, so the aggregator may keep a reference to it.
            scale: Factor on the update.
            weight: Weight of the update in the denominator of a mean.
        """

    @abstractmethod
    def aggregate(self) -> Tensor:
        """Return the aggregate of the buffered updates and clear the buffer.

        Returns:
            A vector that is valid until the next `add`.
        """
