"""What a client rule of the user's own sends: mistakes end a run at once, with what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from tests.support.experiments import experiment
from tests.support.local_loops import Drift
from torch import Tensor

import offbeat as ob
from offbeat.client.rules import Number, State
from offbeat.runs import api


@dataclass(kw_only=True, frozen=True)
class Drifting(ob.ClientRule):
    """SGD that sends y − x."""

    sends: ClassVar[tuple[str, ...]] = ("drift",)

    def step(self, y: Tensor, g: Tensor, x: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        return y - lr * g, state

    def finish(self, y: Tensor, x: Tensor, lr: Number, steps: Number, state: State) -> tuple[State, State]:
        return {"drift": y - x}, {}

    def server(self) -> Drift | None:
        return Drift()


@dataclass(kw_only=True, frozen=True)
class Alone(Drifting):
    def server(self) -> Drift | None:
        return None


@dataclass(kw_only=True, frozen=True)
class Forgetful(Drifting):
    def finish(self, y: Tensor, x: Tensor, lr: Number, steps: Number, state: State) -> tuple[State, State]:
        return {}, {}


@dataclass(kw_only=True, frozen=True)
class Short(Drifting):
    def finish(self, y: Tensor, x: Tensor, lr: Number, steps: Number, state: State) -> tuple[State, State]:
        return {"drift": (y - x)[..., :5]}, {}


@dataclass(kw_only=True, frozen=True)
class Counting(ob.ClientRule):
    """Client state of another shape than x."""

    client_state: ClassVar[tuple[str, ...]] = ("jobs",)

    def initial_state(self, x: Tensor) -> State:
        return {"jobs": torch.zeros(1)}

    def begin(self, x: Tensor, extra: Any, client_state: State) -> State:
        return client_state

    def step(self, y: Tensor, g: Tensor, x: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        return y - lr * g, state

    def finish(self, y: Tensor, x: Tensor, lr: Number, steps: Number, state: State) -> tuple[State, State]:
        return {}, {"jobs": state["jobs"] + 1}


def test_a_rule_whose_vectors_nothing_receives_is_refused() -> None:
    with pytest.raises(ob.ConfigError, match="client: Alone sends drift, but nothing at the server receives it"):
        experiment(client=Alone())


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Forgetful(), r"must send drift, each a vector like x, \[39\]; it sends nothing"),
        (Short(), r"must send drift, each a vector like x, \[39\]; it sends drift \[5\]"),
    ],
)
def test_a_rule_that_sends_something_else_ends_the_run(executor: str, rule: ob.ClientRule, message: str) -> None:
    with pytest.raises(ob.ConfigError, match=message):
        api.execute(experiment(client=rule, executor=executor))


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_rules_that_send_and_store_run(executor: str) -> None:
    for rule in (Drifting(), Counting()):
        assert api.execute(experiment(client=rule, executor=executor)).summary["rounds"] == 20
