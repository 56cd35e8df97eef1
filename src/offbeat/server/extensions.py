"""Server extensions: server-side state of client rules and of running statistics.

Layers such as BatchNorm collect running statistics in training, a second vector b in addition to x. The server sends b
with x, a client's forward passes change it, and the client returns its own b_i. At a step the server averages the b_i,
whatever its rule for x is: statistics are not a direction, and a mean of variances cannot become negative. With few
arrivals b moves only part of the way, n/3 for n of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from offbeat.messages import Update
from offbeat.stateful import Stateful

BUFFERS = "buffers"
FULL = 3  # arrivals that replace b completely; a larger number would lag and cost accuracy


class ServerExtension(Stateful, ABC):
    """Server-side part of a client rule, independent of the server's algorithm."""

    @abstractmethod
    def start(self, x: Tensor, clients: int) -> None:
        """Initialize the state for a new run."""

    @abstractmethod
    def extra(self) -> Mapping[str, Tensor]:
        """Return the auxiliary vectors to send with x."""

    @abstractmethod
    def receive(self, update: Update) -> None:
        """Process the auxiliary vectors of an accepted update."""

    def stepped(self) -> None:
        """React to a new version of x."""


class RunningStatistics(ServerExtension):
    """b ← b + min(1, n/3)·((1/n) Σ b_i − b) over the n updates since the last step.

    Args:
        b: The initial running statistics.
    """

    state_names: ClassVar[tuple[str, ...]] = ("b", "total", "count")

    def __init__(self, b: Tensor) -> None:
        self.b = b

    def start(self, x: Tensor, clients: int) -> None:
        """Clear the sum."""
        self.total, self.count = torch.zeros_like(self.b), 0

    def extra(self) -> Mapping[str, Tensor]:
        """Return b."""
        return {BUFFERS: self.b}

    def receive(self, update: Update) -> None:
        """Add b_i to the sum."""
        self.total.add_(update.extra[BUFFERS])
        self.count += 1

    def stepped(self) -> None:
        """Move b toward the mean of the b_i."""
        if self.count:
            self.b = self.b.lerp(self.total / self.count, min(1.0, self.count / FULL))
            self.total, self.count = torch.zeros_like(self.b), 0


class CompositeExtension(ServerExtension):
    """Several extensions combined.

    Args:
        parts: The extensions.
    """

    def __init__(self, parts: Sequence[ServerExtension]) -> None:
        self.parts = parts

    def start(self, x: Tensor, clients: int) -> None:
        """Start all parts."""
        for part in self.parts:
            part.start(x, clients)

    def extra(self) -> Mapping[str, Tensor]:
        """Return the auxiliary vectors of all parts."""
        return {name: value for part in self.parts for name, value in part.extra().items()}

    def receive(self, update: Update) -> None:
        """Pass the update to all parts."""
        for part in self.parts:
            part.receive(update)

    def stepped(self) -> None:
        """Notify all parts."""
        for part in self.parts:
            part.stepped()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all parts."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)
