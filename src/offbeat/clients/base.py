"""What a client does locally: a pure step on vectors, so that many clients can be stepped at once."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from offbeat.errors import ConfigError
from offbeat.options import Count, Options, Positive

State = dict[str, Tensor]


@dataclass(kw_only=True, frozen=True)
class ClientRule(Options, ABC):
    """A local rule.  All tensors are (d,) for one client or (n, d) for a stack of them, and no operation mixes rows."""

    lr: Positive = 0.1
    """Local rate η_l."""
    batch_size: Count = 32
    """Examples a local step; a client with fewer uses what it has."""
    epochs: Count | None = None
    """Passes over the client's data; one when neither `epochs` nor `steps` is given."""
    steps: Count | None = None
    """Local steps K, instead of epochs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is not None and self.steps is not None:
            raise ConfigError(f"{self.steps} given beside epochs = {self.epochs}: give one of the two", key="steps")

    def local_steps(self, examples: int) -> int:
        """K for a client with so many examples."""
        return self.steps or (self.epochs or 1) * math.ceil(examples / self.batch_size)

    def begin(self, x: Tensor) -> State:
        """State that lives for one job, starting from the pulled model x."""
        return {}

    @abstractmethod
    def step(self, y: Tensor, g: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One local step: from y along the gradient g, x being the pulled model.  Returns the new y and state."""
