"""Why a client rule cannot be stacked."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tests.support.executors import RULES, deltas, jobs, work
from tests.support.local_loops import PlainLoop, Remembering
from torch import Tensor, nn

import offbeat as ob
from offbeat.client.rules import SGD, ClientRule, Number, State
from offbeat.executors import choose
from offbeat.executors.probe import why_not_stackable

LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))


@dataclass(kw_only=True, frozen=True)
class OneCounter(SGD):
    """A counter for the whole stack instead of one per client."""

    def begin(self, x: Tensor, extra: Mapping[str, Tensor], client_state: State) -> State:
        return {"t": torch.zeros(1)}

    def update(self, y: Tensor, g: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        return y - lr * g, {"t": state["t"] + 1}


@dataclass(kw_only=True, frozen=True)
class Normalized(SGD):
    """A step of length lr, of all rows together."""

    elementwise = False

    def update(self, y: Tensor, g: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        return y - lr * g / g.norm(), state


@dataclass(kw_only=True, frozen=True)
class OneRate(SGD):
    """A rate that must be a number."""

    def update(self, y: Tensor, g: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        return torch.add(y, g, alpha=-lr), state  # type: ignore[arg-type]


@dataclass(kw_only=True, frozen=True)
class OneMean(Remembering):
    """Stores a mean over all clients of a stack."""

    def finish(self, y: Tensor, x: Tensor, lr: Number, steps: Number, state: State) -> tuple[State, State]:
        return {}, {name: state[name] for name in self.client_state} | {"matrix": state["matrix"] + y.mean()}


@dataclass(kw_only=True, frozen=True)
class Tabled(SGD):
    """A rule with a field that has no hash."""

    table: dict[str, float] = field(default_factory=dict)


CASES: list[tuple[ClientRule, str]] = [
    (PlainLoop(), "the client rule PlainLoop trains in a loop of its own, one client after the other."),
    (OneCounter(), r"OneCounter cannot be stacked: the shape of the state 't' is \[1\] for two clients, not \[2, 1\]."),
    (Normalized(), "Normalized cannot be stacked: y depends on the other clients, or on chance."),
    (OneRate(), r"OneRate cannot take the steps of two clients at once: add\(\)"),
    (Tabled(), r"Tabled has a field without a hash \(unhashable type: 'dict'\): use field\(hash=False\), or a tuple."),
    (OneMean(), "OneMean cannot be stacked: the client state 'matrix' depends on the other clients"),
]


@pytest.mark.parametrize(("rule", "message"), CASES, ids=lambda value: type(value).__name__)
def test_a_rule_that_cannot_be_stacked_is_refused_in_words_and_trains_one_by_one(rule: Any, message: str) -> None:
    runtime = work(copy.deepcopy(LINEAR), rule)
    with pytest.raises(ob.ConfigError, match=f"executor: 'vectorized' cannot run this model: .*{message}"):
        choose("vectorized", runtime, 4, 10)
    name, _ = choose("auto", runtime, 4, 10)
    assert name in ("sequential", "processes")
    assert deltas("sequential", runtime, jobs(runtime)).isfinite().all()


@pytest.mark.parametrize("rule", [*RULES, Remembering()], ids=str)
def test_rules_that_can_be_stacked(rule: ClientRule) -> None:
    assert why_not_stackable(work(copy.deepcopy(LINEAR), rule).context) is None
