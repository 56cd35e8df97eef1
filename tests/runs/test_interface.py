"""The interface that was promised for tasks, optimizers and evaluations, as written."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from torch import nn

import offbeat as ob
from offbeat.runs import api, config

rng = np.random.default_rng(0)
x, x_test = rng.normal(size=(400, 5)).astype(np.float32), rng.normal(size=(100, 5)).astype(np.float32)
weights = 0.2 * rng.normal(size=5)
y, y_test = x @ weights, x_test @ weights
parts = np.array_split(np.arange(400), 20)


def make_model() -> nn.Module:
    return nn.Linear(5, 1)


class MyTask(ob.Task):
    def loss(self, outputs: Any, labels: Any) -> Any:
        return (outputs.squeeze(-1) - labels).square()


def regression() -> ob.Dataset:
    return ob.from_arrays(x, y, x_test, y_test)


def images() -> ob.Dataset:
    labels = rng.integers(3, size=60)
    return ob.from_arrays(rng.normal(size=(60, 3, 8, 8)) + labels[:, None, None, None], labels)


def test_from_python() -> None:
    result = ob.run(
        data=ob.from_arrays(x, y, x_test, y_test),  # y: float targets of any shape
        partition=parts, model=make_model,
        task=ob.Task(loss=lambda outputs, y: (outputs.squeeze(-1) - y).square(),  # per example
                     metrics={"mae": lambda outputs, y: (outputs.squeeze(-1) - y).abs()}),  # per example, averaged
        algorithm=ob.CA2FL(), client=ob.AdamW(lr=1e-3, clip_norm=1.0, epochs=1, batch_size=16),
        scheduler=ob.Buffered(concurrency=10, buffer=5),
        evaluation=ob.Evaluation(every=5, target={"mae": 0.2}, stop_at_target=True, examples=2000, per_client=True),
        rounds=400,
    )  # fmt: skip
    first, last = result.evaluations[0], result.evaluations[-1]
    assert {"version", "virtual_seconds", "mae", "loss"} < set(last)
    assert first["mae"] > 0.2 >= last["mae"]
    assert all(line["mae"] > 0.2 for line in result.evaluations[:-1])
    assert result.summary["stopped"] == "the target was reached"
    assert result.summary["target_seconds"] == last["virtual_seconds"]
    assert result.summary["best_mae"] == min(line["mae"] for line in result.evaluations)
    row = result.client_evaluations[-1]
    assert set(row) == {"version", "virtual_seconds", "client", "examples", "mae", "loss"}
    assert len(result.client_evaluations) == 20 * len(result.evaluations)
    assert np.mean([row["mae"] for row in result.client_evaluations[-20:]]) == pytest.approx(last["mae"], rel=0.3)


TOML: dict[str, dict[str, Any]] = {
    "built-in": {"task": {"name": "regression"}, "model": {"name": "mlp", "hidden": [4]}},
    "own": {"task": "tests.runs.test_interface:MyTask", "model": "tests.runs.test_interface:make_model"},
    "norm": {
        "data": {"name": "tests.runs.test_interface:images", "clients": 10},
        "model": {"name": "convmixer", "dim": 8, "depth": 1, "kernel": 3, "patch": 2, "norm": "batch"},
        "client": {"name": "adamw", "drop_last": True, "batch_size": 3, "schedule": {"name": "inverse", "offset": 1}},
    },
}


@pytest.mark.parametrize("name", TOML)
def test_from_toml(name: str, tmp_path: pathlib.Path) -> None:
    table: dict[str, Any] = {
        "rounds": 4, "data": {"name": "tests.runs.test_interface:regression", "clients": 10},
        "client": {"name": "adamw", "lr": 0.01, "schedule": {"name": "inverse", "offset": 1}},
    }  # fmt: skip
    experiment = config.parse(table | TOML[name])
    assert experiment.client.schedule == ob.schedules.InverseDecay(offset=1)
    result = api.execute(experiment, out=tmp_path / "run")
    assert result.evaluations[-1]["loss"] < result.evaluations[0]["loss"]
    assert config.parse(config.read(tmp_path / "run" / "config.toml")).task == experiment.task
