"""Steps on the personal part of a model before those on the shared part, around any rule.

Collins et al., *Exploiting Shared Representations for Personalized Federated Learning*, ICML 2021, Algorithm 1: a
client takes τ steps on its head with the body frozen, and then steps on the body with the head frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from offbeat.client.rules.base import ClientRule, Number, State
from offbeat.errors import ConfigError
from offbeat.server.extensions import ServerExtension

HEAD_STEPS = "head_steps"  # the state that holds how many steps on the personal part remain


@dataclass(kw_only=True, frozen=True)
class HeadFirst(ClientRule):
    """A rule whose first steps move only the personal part [d:], and the others only x = [:d].

    The part that a step does not move keeps its momentum, and its gradient does not count for clipping. With the first
    step on x the rule's counters start again.
    """

    rule: ClientRule
    """The rule of the steps."""
    head_steps: int
    """Steps on the personal part, in addition to those of the rule."""
    shared: int
    """Length d of x."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("name", "client_state", "sends"):
            object.__setattr__(self, name, getattr(self.rule, name))

    def without_rate(self) -> Self:
        """Return the rule with a neutral learning rate."""
        return replace(super().without_rate(), rule=self.rule.without_rate())

    def local_steps(self, examples: int) -> int:
        """Return the number of local steps on both parts."""
        return self.head_steps + self.rule.local_steps(examples)

    def initial_state(self, x: Tensor) -> State:
        """Return the rule's state of a client before its first job."""
        return self.rule.initial_state(x)

    def begin(self, x: Tensor, extra: Mapping[str, Tensor], client_state: State) -> State:
        """Return the rule's state and the number of steps on the personal part that remain; none if it is not given."""
        rest = {name: value for name, value in client_state.items() if name != HEAD_STEPS}
        remaining = client_state.get(HEAD_STEPS, x.new_zeros((*x.shape[:-1], 1)))
        return dict(self.rule.begin(x, extra, rest)) | {HEAD_STEPS: remaining}

    def step(self, y: Tensor, g: Tensor, x: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        """Perform a step of the rule on one of the two parts."""
        remaining = state[HEAD_STEPS]
        before = {name: value for name, value in state.items() if name != HEAD_STEPS}
        personal = torch.arange(y.shape[-1], device=y.device) >= self.shared
        moves = personal == (remaining > 0)
        g = _clipped(torch.where(moves, g, torch.zeros_like(g)), self.rule.clip_norm)
        stepped, after = self.rule.step(y, g, x, lr, before)
        left = remaining - 1
        new = {}
        for name, value in after.items():
            if value.shape[-1] == y.shape[-1]:
                new[name] = torch.where(moves, value, before[name])
            else:
                new[name] = torch.where(left == 0, torch.zeros_like(value), value)
        return torch.where(moves, stepped, y), new | {HEAD_STEPS: left}

    def finish(self, y: Tensor, x: Tensor, lr: Number, steps: Number, state: State) -> tuple[State, State]:
        """Return what the rule sends and stores after its steps on x."""
        rest = {name: value for name, value in state.items() if name != HEAD_STEPS}
        return self.rule.finish(y, x, lr, -state[HEAD_STEPS], rest)

    def server(self) -> ServerExtension | None:
        """Return the server's part of the rule."""
        return self.rule.server()


def head_first(rule: ClientRule, head_steps: int, shared: int) -> ClientRule:
    """Return the rule of a job: with steps on the personal part first, if there are any.

    Args:
        rule: The client rule.
        head_steps: Steps on the personal part.
        shared: Length of x.
    """
    if not head_steps or isinstance(rule, HeadFirst):
        return rule
    if rule.own_loop:
        raise ConfigError(
            f"{type(rule).__name__} trains in a loop of its own, which decides itself what a step moves: remove it",
            key="personalization.head_steps",
        )
    options = {entry.name: getattr(rule, entry.name) for entry in fields(ClientRule)}
    return HeadFirst(**(options | {"clip_norm": None}), rule=rule, head_steps=head_steps, shared=shared)


def _clipped(g: Tensor, norm: float | None) -> Tensor:
    """Return gradients (…, d) scaled down to a norm, as torch clips them."""
    if norm is None:
        return g
    return g * (norm / (g.square().sum(dim=-1, keepdim=True).sqrt() + 1e-6)).clamp(max=1.0)
