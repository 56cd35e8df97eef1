"""Client rules: pure local steps on vectors, so that many clients can be stepped at once, or a loop of their own."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor, nn

from offbeat.errors import ConfigError
from offbeat.options import NonNegative, Options, Positive, PositiveInt
from offbeat.schedules import ConstantRate, Schedule, as_schedule
from offbeat.server.extensions import ServerExtension

if TYPE_CHECKING:
    from offbeat.client.local_loop import Batches, LocalJob

State = dict[str, Tensor]
Number = float | Tensor  # one value for all rows, or (n, 1): one per row


@dataclass(kw_only=True, frozen=True)
class ClientRule(Options, ABC):
    """A local training rule. A subclass overrides `step`, for a rule of pure steps, or `train`, for a loop of its own.

    In pure steps all tensors are (d,) for one client or (n, d) for a stack of clients, and no operation mixes rows. A
    job runs through begin → step, step, … → finish. The state that `finish` returns is available at the client's next
    job.
    """

    lr: Positive = 0.1
    """Local learning rate η_l."""
    schedule: Schedule = field(default_factory=ConstantRate)
    """Schedule of η_l over the effective steps of the server, which count the steps that have moved x."""
    batch_size: PositiveInt = 32
    """Examples per forward pass; a client with fewer uses all of them."""
    epochs: PositiveInt | None = None
    """Passes over the client's data; one if neither `epochs` nor `steps` is given."""
    steps: PositiveInt | None = None
    """Local steps K, instead of epochs."""
    accumulate: PositiveInt = 1
    """Batches per local step: their gradients are averaged over all examples before the step."""
    drop_last: bool = False
    """Whether the last batch of an epoch is dropped if it is short, unless the client has no other."""
    clip_norm: Positive | None = None
    """Maximum norm of the loss's gradient in a local step; longer ones are scaled down to it."""
    weight_decay: NonNegative = 0.0
    """λ: the gradient is g + λ·y."""

    name: ClassVar[str] = ""
    """Name of the rule, which subclasses share."""
    client_state: ClassVar[tuple[str, ...]] = ()
    """Names of the tensors that a client stores between jobs; `initial_state` returns their first values."""
    sends: ClassVar[tuple[str, ...]] = ()
    """Names of the auxiliary vectors that a client sends with Δ."""
    elementwise: ClassVar[bool] = False
    """Whether a step treats every entry alike, so that it can be applied parameter by parameter."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", as_schedule(self.schedule))
        super().__post_init__()
        if self.epochs is not None and self.steps is not None:
            raise ConfigError(f"{self.steps} given with epochs = {self.epochs}; set only one of the two", key="steps")
        if not self.own_loop and type(self).step is ClientRule.step:
            raise ConfigError(f"{type(self).__name__} cannot train: override `step`, or `train` for a loop of its own")

    @property
    def own_loop(self) -> bool:
        """Whether the rule trains in a loop of its own, one client after the other."""
        return type(self).train is not ClientRule.train

    @property
    def plain(self) -> bool:
        """Whether a step is exactly y − lr·(g + weight_decay·y)."""
        return False

    @property
    def examples_per_step(self) -> int:
        """Examples of a local step."""
        return self.batch_size * self.accumulate

    def without_rate(self) -> Self:
        """Return the rule with a neutral learning rate: it is equal for rules that can share a stack."""
        return replace(self, lr=1.0, schedule=ConstantRate())

    def local_steps(self, examples: int) -> int:
        """Return the number K of local steps for a client with the given number of examples."""
        return self.steps or (self.epochs or 1) * steps_per_epoch(examples, self.examples_per_step, self.drop_last)

    def initial_state(self, x: Tensor) -> State:
        """Return the state of a client before its first job, one tensor per name in `client_state`.

        Vectors of zeros like x unless this is overridden. Pure steps accept tensors of any shape and dtype with at
        least one dimension; a stack puts one in front, and a tensor whose last dimension is d is cut like the model
        (see `begin`). A loop of its own accepts any tensor, and shapes may change.

        Args:
            x: The model (d,) that the client received with its first job.
        """
        return {name: torch.zeros_like(x) for name in self.client_state}

    def begin(self, x: Tensor, extra: Mapping[str, Tensor], client_state: State) -> State:
        """Return the state with which a job starts.

        A vector of the length of x is cut like the model where steps run parameter by parameter; a tensor whose last
        dimension has another length, such as a counter (1,) or (n, 1), is not.

        Args:
            x: The model that the client received.
            extra: The auxiliary vectors that came with it.
            client_state: The client's stored tensors.
        """
        return {}

    def step(self, y: Tensor, g: Tensor, x: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        """Perform one local step.

        Args:
            y: The local model.
            g: Its gradient, which the rule may overwrite.
            x: The model that the client received.
            lr: The learning rate.
            state: The state of the job.

        Returns:
            The new y and the new state.
        """
        raise NotImplementedError

    def finish(self, y: Tensor, x: Tensor, lr: Number, steps: Number, state: State) -> tuple[State, State]:
        """Return the auxiliary vectors to send and the client's new state, after the last of `steps` steps."""
        return {}, {}

    def train(self, model: nn.Module, batches: Batches, job: LocalJob) -> Mapping[str, Tensor] | None:
        """Train a job in a loop of the rule's own, which sees the module, the batches and their losses.

        Args:
            model: The pulled model in training mode. Its trainable parameters require gradients, and what they are at
                the end is the result.
            batches: The batches of the job, one per local step.
            job: The job, with its learning rate, the client's state and the pulled model.

        Returns:
            New values of names in `client_state` and the vectors of `sends`, or None if there are none. State that is
            left out keeps its value.
        """
        raise NotImplementedError

    def server(self) -> ServerExtension | None:
        """Return the server's part of the rule, or None if it has none."""
        return None


def checked_initial_state(rule: ClientRule, x: Tensor) -> State:
    """Return a rule's initial client state on the device of x.

    Raises:
        ConfigError: It does not have one tensor per name in `client_state`, or one that pure steps cannot use.
    """
    state = rule.initial_state(x)
    where = f"{type(rule).__name__}.initial_state"
    if not isinstance(state, Mapping) or {*state} != {*rule.client_state}:
        found = sorted(state) if isinstance(state, Mapping) else type(state).__name__
        raise ConfigError(f"{where} returned {found}; one tensor per name in {rule.client_state} is needed")
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ConfigError(f"{where}: {name!r} is {type(value).__name__}; a tensor is needed")
        if not value.ndim and not rule.own_loop:
            raise ConfigError(f"{where}: {name!r} has no dimension, so that clients cannot be stacked; use shape (1,)")
    return {name: value.to(x.device) for name, value in state.items()}


def steps_per_epoch(examples: int, per_step: int, drop_last: bool) -> int:
    """Return the local steps of a pass over a client's examples."""
    return max(1, examples // per_step) if drop_last else math.ceil(examples / per_step)


def descend(y: Tensor, direction: Tensor, lr: Number, keep: bool = False) -> Tensor:
    """Return y − lr·direction in one pass.

    On a CPU the result overwrites `direction`, which is still in the cache, unless `keep` is set.
    """
    out = None if keep or direction.device.type != "cpu" else direction
    if isinstance(lr, Tensor):
        return torch.addcmul(y, direction, lr, value=-1, out=out)
    return torch.add(y, direction, alpha=-lr, out=out)
