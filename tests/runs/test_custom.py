"""A user's own task in all its forms, and data from a function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import offbeat as ob
from offbeat.runs import config
from offbeat.runs.custom import CustomTask

HERE = "tests.runs.test_custom"
X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


class MyTask(ob.Task):
    """A task with an option."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__(metrics={"mae": lambda outputs, y: (outputs - y).abs()})
        self.scale = scale

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.scale * (outputs - labels).square()


def huber(outputs: Tensor, y: Tensor, delta: float = 1.0) -> Tensor:
    return functional.huber_loss(outputs, y, reduction="none", delta=delta)


def make(scale: float) -> ob.Task:
    return MyTask(scale)


def wrong() -> int:
    return 3


def alone(outputs: Tensor) -> Tensor:
    return outputs


READY = MyTask(2.0)


def data() -> ob.Dataset:
    return ob.from_arrays(X[:32], Y[:32], X[32:], Y[32:])


def run(**change: Any) -> ob.Result:
    settings: dict[str, Any] = {
        "data": data(), "clients": 4, "model": lambda: nn.Linear(3, 1), "algorithm": ob.FedBuff(), "rounds": 2,
        "scheduler": ob.Buffered(concurrency=3, buffer=2), "client": ob.SGD(lr=0.01, batch_size=4),
    }  # fmt: skip
    return ob.run(**(settings | change))


def losses(task: Any) -> list[float]:
    outputs, labels = torch.tensor([[0.0], [3.0]]), torch.zeros(2, 1)
    parsed = config.parse({"task": task}).task
    assert config.parse(config.describe(config.parse({"task": task}))).task == parsed
    found: list[float] = parsed.losses(outputs, labels, 2).tolist()
    return found


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (f"{HERE}:MyTask", [0, 9]),
        ({"name": f"{HERE}:MyTask", "scale": 3.0}, [0, 27]),
        ({"name": f"{HERE}:make", "scale": 0.5}, [0, 4.5]),
        (f"{HERE}:READY", [0, 18]),
        (f"{HERE}:huber", [0, 2.5]),
        ({"name": f"{HERE}:huber", "delta": 2.0}, [0, 4]),
        ({"name": "torch.nn:MSELoss", "reduction": "none"}, [0, 9]),
        ("regression", [0, 9]),
    ],
)
def test_tasks_in_toml(task: Any, expected: list[float]) -> None:
    assert losses(task) == expected


def test_losses_of_torch() -> None:
    built_in = run(task="regression")
    for task in (nn.MSELoss(reduction="none"), MyTask, MyTask(), lambda out, y: (out - y).square()):
        assert torch.equal(run(task=task).x, built_in.x)
    with pytest.raises(ob.ConfigError, match=r"returned a single number.*reduction='none'"):
        run(task=functional.mse_loss)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (3, "task: 3 is not a task, nor a loss function of"),
        (alone, r"test_custom:alone is not a loss function of \(outputs, labels\)"),
        (wrong, "test_custom:wrong returned int, not an offbeat.Task"),
        (lambda out, y: (out - y).square().detach(), "task.loss: it does not depend on the model's parameters"),
        (lambda out, y: (out > y).long(), "task.loss: it returned torch.int64, which has no gradient"),
    ],
)
def test_what_is_no_task_gets_a_message(task: Any, message: str) -> None:
    with pytest.raises(ob.ConfigError, match=message):
        run(task=task)


@pytest.mark.filterwarnings("ignore:Using a target size")  # torch warns, too
def test_shapes_that_are_broadcast_by_mistake() -> None:
    """(B, 1) minus (B,) is (B, B), whose mean per row would be accepted."""
    flat = ob.from_arrays(X[:32], Y[:32, 0], X[32:], Y[32:, 0])
    for task in (lambda out, y: (out - y).square(), nn.MSELoss(reduction="none")):
        with pytest.raises(
            ob.ConfigError, match=r"task\.loss: it returned \[2, 2\] for 2 examples and \[1, 1\] for one"
        ):
            run(data=flat, task=task)
    right = ob.Task(loss=lambda out, y: (out[:, 0] - y).square(), metrics={"mae": lambda out, y: (out - y).abs()})
    with pytest.raises(ob.ConfigError, match=r"task\.metrics\.mae: .* broadcast against each other"):
        run(data=flat, task=right)


def test_metrics_have_names() -> None:
    with pytest.raises(ob.ConfigError, match=r"task\.metrics: .* is not a dict of metrics by name"):
        ob.Task(loss=huber, metrics=[huber])  # type: ignore[arg-type]


def test_tasks_that_are_the_same_are_pooled() -> None:
    assert CustomTask(make=huber).pool_key == CustomTask(make=huber).pool_key
    assert CustomTask(make=huber, options={"delta": 2.0}).pool_key != CustomTask(make=huber).pool_key


def test_data_from_a_function() -> None:
    assert torch.equal(run(data=data, task="regression").x, run(task="regression").x)
