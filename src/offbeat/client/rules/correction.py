"""Base class of the corrections against client drift, which change the gradient and leave the step to an optimizer."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import ClassVar

from torch import Tensor

from offbeat.client.rules.base import ClientRule, Number, State
from offbeat.client.rules.optimizer import LocalOptimizer
from offbeat.client.rules.sgd import SGD
from offbeat.errors import ConfigError


@dataclass(kw_only=True, frozen=True)
class Correction(ClientRule):
    """Base of the rules that correct the gradient and leave the step to an optimizer.

    Learning rate, batches, clipping and weight decay are those of the rule, not of its optimizer.
    """

    optimizer: LocalOptimizer = field(default_factory=SGD)
    """The optimizer of the local steps, with its own options such as momentum."""

    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer, LocalOptimizer):
            raise ConfigError(no_pure_step(self.optimizer), key="optimizer")
        super().__post_init__()
        for entry in fields(ClientRule):
            default = entry.default_factory() if entry.default_factory is not MISSING else entry.default
            own = next(each for each in fields(self.optimizer) if each.name == entry.name).default
            if getattr(self.optimizer, entry.name) not in (default, own):
                raise ConfigError(
                    f"it is an option of the rule, next to its optimizer: set client.{entry.name}",
                    key=f"optimizer.{entry.name}",
                )

        _ = self._descent  # known before a step is compiled: a property that is computed there would end its graph

    @functools.cached_property
    def _descent(self) -> LocalOptimizer:
        """The optimizer with this rule's weight decay."""
        return replace(self.optimizer, weight_decay=self.weight_decay)

    @abstractmethod
    def corrected(self, g: Tensor, y: Tensor, x: Tensor, state: State) -> Tensor:
        """Return the corrected gradient as a new tensor.

        Args:
            g: The gradient, with weight decay unless that is decoupled.
            y: The local model.
            x: The model that the client received.
            state: The state of the job.
        """

    def begin(self, x: Tensor, extra: Mapping[str, Tensor], client_state: State) -> State:
        """Return the optimizer's moments."""
        return self.optimizer.moments(x)

    def step(self, y: Tensor, g: Tensor, x: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        """Return the next y and the new state."""
        if self.weight_decay and not self.optimizer.decoupled:
            g = g.add(y, alpha=self.weight_decay)
        return self._descent.update(y, self.corrected(g, y, x, state), lr, state)


def no_pure_step(optimizer: object) -> str:
    """Return why an optimizer that is not a `LocalOptimizer` cannot be that of a correction."""
    return (
        f"{optimizer!r:.80} has no pure step, which a correction needs to change the gradient: use SGD, Adam, AdamW, "
        "Adagrad or another LocalOptimizer, or add the correction to the loss in a loop of your own (ClientRule.train)"
    )
