"""Labels of any type and shape under the built-in tasks, and models that are built for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import offbeat as ob

N = 48
rng = np.random.default_rng(0)
X = rng.normal(size=(N, 5)).astype(np.float32)
Y = X @ np.array([1.0, -2.0, 0.5, 0.0, 3.0])
SEVERAL = np.stack([Y > 0, Y > 1, Y < -1], axis=1)
IMAGES = rng.normal(size=(N, 1, 4, 4)).astype(np.float32)


def run(task: str, x: Any, y: Any, model: Any, **change: Any) -> ob.Result:
    settings = {
        "data": ob.from_arrays(x[:32], y[:32], x[32:], y[32:]), "clients": 4, "model": model, "task": task,
        "algorithm": ob.FedBuff(), "scheduler": ob.Buffered(concurrency=3, buffer=2), "rounds": 2,
        "client": ob.SGD(lr=0.01, batch_size=4), "evaluation": 2, "executor": "sequential",
    }  # fmt: skip
    return ob.run(**(settings | change))


def same(results: list[ob.Result]) -> None:
    for each in results[1:]:
        assert torch.equal(each.x, results[0].x)
        assert each.evaluations[-1]["loss"] == results[0].evaluations[-1]["loss"]


def test_regression() -> None:
    targets = np.rint(Y - Y.min())
    kinds = ("float64", "float32", "float16", "int32", "uint8", "int64")
    same([run("regression", X, targets.astype(kind), lambda: nn.Linear(5, 1)) for kind in kinds])
    same([run("regression", X, y, lambda: nn.Linear(5, 1)) for y in (Y, Y[:, None])])
    same([run("regression", X, SEVERAL.astype(kind), lambda: nn.Linear(5, 3)) for kind in ("float32", "bool", "uint8")])


def test_classification() -> None:
    same(
        [run("classification", X, (Y > 0).astype(kind), lambda: nn.Linear(5, 2)) for kind in ("int64", "uint8", "bool")]
    )


def test_multilabel() -> None:
    kinds = ("int64", "uint8", "bool", "float64")
    same([run("multilabel", X, SEVERAL.astype(kind), lambda: nn.Linear(5, 3)) for kind in kinds])


def test_segmentation() -> None:
    masks = IMAGES[:, 0] > 0
    kinds = ("int64", "uint8", "bool")
    same([run("segmentation", IMAGES, masks.astype(kind), lambda: nn.Conv2d(1, 2, 3, padding=1)) for kind in kinds])


@pytest.mark.parametrize(
    ("task", "y", "outputs"),
    [
        ("regression", np.rint(Y - Y.min()).astype(int), 1),
        ("regression", np.rint(Y).astype(int), 1),
        ("regression", np.stack([Y, Y], axis=1), 2),
        ("multilabel", SEVERAL.astype(int), 3),
        ("multilabel", SEVERAL, 3),
        ("classification", (Y > 0).astype(int) + 2, 4),
    ],
)
def test_a_model_by_name_has_the_outputs_that_the_task_needs(task: str, y: Any, outputs: int) -> None:
    """Integer targets of a regression are no classes."""
    result = run(task, X, y, ob.models.LR(), client=ob.SGD(lr=1e-4, batch_size=4))
    assert result.summary["parameters"] == 6 * outputs


def test_labels_that_are_no_classes() -> None:
    with pytest.raises(ob.ConfigError, match="classes are numbered from 0, but there is a label -1"):
        run("classification", X, np.full(N, -1), lambda: nn.Linear(5, 2))
    with pytest.raises(
        ob.ConfigError, match=r"one integer label per example, but the labels are float32 of shape \[\]"
    ):
        run("classification", X, Y, lambda: nn.Linear(5, 2))
