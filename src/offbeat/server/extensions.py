"""What layers such as BatchNorm gather in training: running statistics, a second vector b beside x.

The server sends b with x, a client's forward passes change it, and the client sends its own b_i back.  At a step the
server takes the plain mean of what has arrived, whatever its rule for x is: statistics are no direction to go in, and a
mean of variances cannot become negative.  A step with few arrivals moves b only part of the way, n/3 for n of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from offbeat.messages import Update

BUFFERS = "buffers"
FULL = 3  # arrivals that replace b; fewer move it part of the way, more lag than that costs accuracy


class ServerExtension(ABC):
    """What a client rule needs at the server, whatever the server's own rule is."""

    @abstractmethod
    def start(self, x: Tensor, clients: int) -> None: ...

    @abstractmethod
    def extra(self) -> Mapping[str, Tensor]:
        """What goes down beside x."""

    @abstractmethod
    def receive(self, update: Update) -> None: ...

    def stepped(self) -> None:  # noqa: B027 — most have nothing to do
        """The server has made a new version."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class RunningStatistics(ServerExtension):
    """b ← b + min(1, n/3)·((1/n) Σ b_i − b) over the n updates since the last step."""

    def __init__(self, b: Tensor) -> None:
        self.b = b

    def start(self, x: Tensor, clients: int) -> None:
        self.total, self.count = torch.zeros_like(self.b), 0

    def extra(self) -> Mapping[str, Tensor]:
        return {BUFFERS: self.b}

    def receive(self, update: Update) -> None:
        self.total.add_(update.extra[BUFFERS])
        self.count += 1

    def stepped(self) -> None:
        if self.count:
            self.b = self.b.lerp(self.total / self.count, min(1.0, self.count / FULL))
            self.total, self.count = torch.zeros_like(self.b), 0

    def state_dict(self) -> dict[str, Any]:
        return {"b": self.b, "total": self.total, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.b, self.total, self.count = state["b"], state["total"], state["count"]


class CompositeExtension(ServerExtension):
    """Several as one."""

    def __init__(self, parts: Sequence[ServerExtension]) -> None:
        self.parts = parts

    def start(self, x: Tensor, clients: int) -> None:
        for part in self.parts:
            part.start(x, clients)

    def extra(self) -> Mapping[str, Tensor]:
        return {name: value for part in self.parts for name, value in part.extra().items()}

    def receive(self, update: Update) -> None:
        for part in self.parts:
            part.receive(update)

    def stepped(self) -> None:
        for part in self.parts:
            part.stepped()

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)
