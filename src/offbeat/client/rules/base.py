"""What a client does locally: a pure step on vectors, so that many clients can be stepped at once."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from offbeat.errors import ConfigError
from offbeat.options import NonNegative, Options, Positive, PositiveInt
from offbeat.server.extensions import ServerExtension

State = dict[str, Tensor]
Number = float | Tensor  # the same for all, or (n, 1): one a row


@dataclass(kw_only=True, frozen=True)
class ClientRule(Options, ABC):
    """A local rule.  All tensors are (d,) for one client or (n, d) for a stack of them, and no operation mixes rows.

    A job runs through begin → step, step, … → finish.  What `finish` keeps is there again at the client's next job.
    """

    lr: Positive = 0.1
    """Local rate η_l."""
    batch_size: PositiveInt = 32
    """Examples a local step; a client with fewer uses what it has."""
    epochs: PositiveInt | None = None
    """Passes over the client's data; one when neither `epochs` nor `steps` is given."""
    steps: PositiveInt | None = None
    """Local steps K, instead of epochs."""
    weight_decay: NonNegative = 0.0
    """λ: the gradient is g + λ·y."""

    name: ClassVar[str] = ""
    """Name of the rule, which subclasses share."""
    keeps: ClassVar[tuple[str, ...]] = ()
    """Vectors that a client keeps between two jobs, zero before the first."""
    sends: ClassVar[tuple[str, ...]] = ()
    """Vectors that it sends beside its update."""
    elementwise: ClassVar[bool] = False
    """Whether a step does with every number the same, so that it can be done parameter by parameter."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is not None and self.steps is not None:
            raise ConfigError(f"{self.steps} given beside epochs = {self.epochs}: give one of the two", key="steps")

    @property
    def plain(self) -> bool:
        """Whether a step is y − lr·(g + weight_decay·y) and nothing more."""
        return False

    def local_steps(self, examples: int) -> int:
        """K for a client with so many examples."""
        return self.steps or (self.epochs or 1) * math.ceil(examples / self.batch_size)

    def begin(self, x: Tensor, extra: Mapping[str, Tensor], kept: State) -> State:
        """State that lives for one job: from the pulled model, what came beside it, and what the client has kept."""
        return {}

    @abstractmethod
    def step(self, y: Tensor, g: Tensor, x: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        """One local step: from y along the gradient g, x being the pulled model.  Returns the new y and state.

        g is the rule's to write into.
        """

    def finish(self, y: Tensor, x: Tensor, lr: Number, steps: Number, state: State) -> tuple[State, State]:
        """After the last of `steps` steps: what is sent beside the update, and what the client keeps."""
        return {}, {}

    def server(self) -> ServerExtension | None:
        """The rule's other half, for rules that need one."""
        return None


def descend(y: Tensor, direction: Tensor, lr: Number, keep: bool = False) -> Tensor:
    """y − lr·direction in one pass; on a CPU in the direction's place, which is in its cache, unless that is kept."""
    out = None if keep or direction.device.type != "cpu" else direction
    if isinstance(lr, Tensor):
        return torch.addcmul(y, direction, lr, value=-1, out=out)
    return torch.add(y, direction, alpha=-lr, out=out)
