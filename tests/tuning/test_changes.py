"""Runs with other hyperparameters, from tables and from objects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.experiments import experiment

import offbeat as ob
from offbeat.runs.sweep import Cell
from offbeat.tuning.changes import accepts, changed

TABLE: dict[str, Any] = {"data": {"name": "digits", "partition": "iid"}, "client": "sgd", "algorithm": "fedbuff"}
FROM_TABLE = Cell("run", 0, TABLE)
FROM_OBJECTS = Cell("run", 0, given=experiment())


@pytest.mark.parametrize("cell", [FROM_TABLE, FROM_OBJECTS], ids=["table", "objects"])
def test_values_are_set(cell: Cell) -> None:
    before = cell.experiment()
    new = changed(cell, {"client.lr": 0.25, "rounds": 7, "algorithm.eta": 0.5}, "new", 3)
    after = new.experiment()
    assert (new.label, new.seed, after.seed) == ("new", 3, 3)
    assert (after.client.lr, after.rounds) == (0.25, 7)
    assert after.algorithm.eta == 0.5
    assert cell.experiment() == before, "the original is not changed"


def test_a_table_extends_the_short_form_of_a_name() -> None:
    new = changed(Cell("run", 0, TABLE | {"data": {"name": "digits", "partition": "dirichlet"}}),
                  {"data.partition.alpha": 0.5}, "new", 0)  # fmt: skip
    assert new.table["data"]["partition"] == {"name": "dirichlet", "alpha": 0.5}


def test_options_of_the_data_source_and_of_an_optimizer_of_torch_are_keys_too() -> None:
    rule = ob.TorchOptimizer(torch.optim.SGD, lr=0.1, options={"dampening": 0.0})
    given = experiment(client=rule)
    new = changed(Cell("run", 0, given=given), {"client.momentum": 0.9, "data.clients": 3}, "new", 0).experiment()
    assert new.client.options == {"dampening": 0.0, "momentum": 0.9}  # type: ignore[attr-defined]
    assert new.data.clients == 3


@pytest.mark.parametrize("objects", [False, True])
def test_a_share_shortens_all_limits(objects: bool) -> None:
    limits = {"rounds": 90, "virtual_seconds": 30.0, "budget": {"client_steps": 100, "virtual_seconds": 60.0}}
    if objects:
        limits["budget"] = ob.Budget.of(limits["budget"])  # type: ignore[arg-type]
    cell = Cell("run", 0, given=experiment(**limits)) if objects else Cell("run", 0, TABLE | limits)
    short = changed(cell, {}, "new", 0, share=1 / 3).experiment()
    assert (short.rounds, short.virtual_seconds) == (30, 10.0)
    assert short.budget == ob.Budget(client_steps=33, virtual_seconds=20.0)
    assert changed(cell, {}, "new", 0).experiment().rounds == 90


@pytest.mark.parametrize("cell", [FROM_TABLE, FROM_OBJECTS], ids=["table", "objects"])
def test_keys_that_a_run_has(cell: Cell) -> None:
    assert accepts(cell, "client.lr", 0.1)
    assert not accepts(cell, "client.mu", 0.1)
    with pytest.raises(ob.ConfigError, match=r"client\.lr: "):
        accepts(cell, "client.lr", "high")


def test_a_key_below_a_value_is_refused_in_words() -> None:
    with pytest.raises(ob.ConfigError, match=r"client\.lr\.low: lr is .*, which has no key 'low'"):
        changed(FROM_OBJECTS, {"client.lr.low": 1}, "new", 0)
