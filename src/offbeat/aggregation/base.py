"""How what has arrived since the last step becomes one vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from offbeat.options import Options
from offbeat.stateful import Stateful


@dataclass(kw_only=True)
class Aggregator(Options, Stateful, ABC):
    """Small and stateful, as a server optimizer is: `add` for every update, then `take` for the step."""

    weighs: ClassVar[bool] = False
    """Whether updates may have weights of their own."""

    def check(self, updates: int | None) -> None:
        """Refuse so many updates a step; None where their number varies."""

    @abstractmethod
    def start(self, like: Tensor, seed: int = 0, updates: int | None = None) -> None:
        """Forget everything; vectors will be as `like`, and a step is made with so many, where that is known."""

    @abstractmethod
    def add(self, client: int, value: Tensor, scale: float = 1.0, weight: float = 1.0) -> None:
        """Take in scale·value.  The value is nobody's to change, so it may be kept."""

    @abstractmethod
    def aggregate(self) -> Tensor:
        """What they come to, and begin anew.  It is lent: it holds until something is added."""
