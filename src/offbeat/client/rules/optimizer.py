"""Base class of the local optimizers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from offbeat.client.rules.base import ClientRule, Number, State


@dataclass(kw_only=True, frozen=True)
class LocalOptimizer(ClientRule):
    """Base of the rules that are plain optimizers. Their moments are zero at the start of every job."""

    elementwise: ClassVar[bool] = True
    decoupled: ClassVar[bool] = False
    """Whether the optimizer itself applies the weight decay, apart from the gradient."""

    def moments(self, x: Tensor) -> State:
        """Return the state with which a job starts."""
        return {}

    @abstractmethod
    def update(self, y: Tensor, g: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        """Perform one step along g, which may be overwritten; entries of the state that are not known are kept.

        Args:
            y: The local model.
            g: The gradient, with weight decay unless it is decoupled.
            lr: The learning rate.
            state: The state of the job.

        Returns:
            The new y and the new state.
        """

    def begin(self, x: Tensor, extra: Mapping[str, Tensor], client_state: State) -> State:
        """Return the moments."""
        return self.moments(x)

    def step(self, y: Tensor, g: Tensor, x: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        """Return the next y and the moments."""
        if self.weight_decay and not self.decoupled:
            g = g.add(y, alpha=self.weight_decay)
        return self.update(y, g, lr, state)
