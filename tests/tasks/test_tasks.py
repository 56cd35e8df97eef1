"""Tasks: losses, metrics, and the same trajectory under every executor."""

from __future__ import annotations

import json
import math
import pathlib
import re
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.local_loops import PlainLoop, RaisesLater
from torch import Tensor, nn
from torch.nn import functional

import offbeat as ob
from offbeat.runs import config
from offbeat.tasks import TASKS

N, TEST = 96, 32


class Words(nn.Module):
    """A tiny language model: embedding, a mixing layer over positions, scores per position."""

    def __init__(self, words: int = 7, width: int = 8) -> None:
        super().__init__()
        self.embed, self.hidden, self.out = nn.Embedding(words, width), nn.Linear(width, width), nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.out(torch.tanh(self.hidden(self.embed(tokens))))
        return out


class Wrapped(nn.Module):
    """A model that takes keyword inputs and returns a dict with logits, like a Hugging Face model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, features: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"logits": self.layer(features * mask)}


def arrays(kind: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N + TEST, 5)).astype(np.float32)
    if kind == "regression":
        return x, x @ np.array([1.0, -2.0, 0.5, 0.0, 3.0]) + 0.1 * rng.normal(size=len(x))
    if kind == "multilabel":
        return x, (x[:, :3] + 0.3 * x[:, 2:] > 0).astype(np.int64)
    if kind == "language-modeling":
        tokens = (np.arange(6) + rng.integers(0, 7, size=(len(x), 1))) % 7
        labels = (tokens + 1) % 7
        labels[:, -1] = -100
        return tokens, labels
    if kind == "segmentation":
        images = rng.normal(size=(len(x), 1, 6, 6)).astype(np.float32)
        return images, (images[:, 0] > 0).astype(np.int64) + (images[:, 0] > 1)
    return x, (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 1)


MODELS: dict[str, Any] = {
    "classification": lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)),
    "regression": lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)),
    "multilabel": lambda: nn.Linear(5, 3),
    "language-modeling": Words,
    "segmentation": lambda: nn.Conv2d(1, 3, 3, padding=1),
}


def split(tree: Any, first: int, last: int | None = None) -> Any:
    return {k: v[first:last] for k, v in tree.items()} if isinstance(tree, dict) else tree[first:last]


def settings(kind: str, **change: Any) -> dict[str, Any]:
    x, y = arrays(kind)
    vocabulary = 7 if kind == "language-modeling" else None
    data = ob.from_arrays(split(x, 0, N), split(y, 0, N), split(x, N), split(y, N), vocabulary=vocabulary)
    parts = [part.tolist() for part in np.split(np.arange(N), [10, 25, 60])]
    base = {
        "data": data, "partition": parts, "model": MODELS[kind], "task": kind, "algorithm": ob.FedBuff(),
        "scheduler": ob.Buffered(concurrency=3, buffer=2), "client": ob.SGD(lr=0.1, batch_size=8, epochs=2),
        "evaluation": 2, "rounds": 8, "executor": "sequential",
    }  # fmt: skip
    return base | change


@pytest.mark.parametrize("kind", TASKS)
def test_every_task_learns_alike_in_stacks_and_one_by_one(kind: str) -> None:
    one, stacked = (ob.run(**settings(kind, executor=name)) for name in ("sequential", "vectorized"))
    assert one.evaluations[-1]["loss"] < 0.9 * one.evaluations[0]["loss"]
    torch.testing.assert_close(one.x, stacked.x, rtol=1e-4, atol=1e-5)
    for first, second in zip(one.evaluations, stacked.evaluations, strict=True):
        assert first["loss"] == pytest.approx(second["loss"], rel=1e-4)


@pytest.mark.parametrize("kind", TASKS)
def test_metrics_are_those_of_the_model(kind: str) -> None:
    result = ob.run(**settings(kind, evaluation=ob.Evaluation(every=4, batch_size=5)))
    model = MODELS[kind]()
    torch.nn.utils.vector_to_parameters(result.x, model.parameters())
    x, y = (torch.as_tensor(split(part, N)) for part in arrays(kind))
    with torch.no_grad():
        out = model(x)
    line = result.evaluations[-1]
    if kind == "classification":
        expected = {"accuracy": (out.argmax(1) == y).double().mean(), "loss": functional.cross_entropy(out, y)}
    elif kind == "regression":
        error = out[:, 0] - y
        expected = {"mae": error.abs().mean(), "rmse": error.square().mean().sqrt(), "loss": error.square().mean()}
    elif kind == "multilabel":
        hit, wrong = ((out > 0) & (y > 0)).sum(), ((out > 0) != (y > 0)).sum()
        expected = {
            "f1": 2 * hit / (2 * hit + wrong), "exact_match_accuracy": ((out > 0) == (y > 0)).all(1).double().mean(),
            "loss": functional.binary_cross_entropy_with_logits(out, y.float()),
        }  # fmt: skip
    elif kind == "language-modeling":
        loss = functional.cross_entropy(out.flatten(0, 1), y.flatten())
        right = (out.argmax(-1) == y)[:, :-1].double().mean()
        expected = {"loss": loss, "perplexity": loss.exp(), "accuracy": right}
    else:
        guess = out.argmax(1)
        both = [((guess == c) & (y == c)).sum() / ((guess == c) | (y == c)).sum() for c in range(3)]
        expected = {"mean_iou": torch.stack(both).mean(), "accuracy": (guess == y).double().mean()}
    for name, value in expected.items():
        assert line[name] == pytest.approx(float(value), rel=1e-4), name
        assert result.summary[name] == line[name]
    assert result.summary["metric"] == next(iter(TASKS[kind]().metrics))


def regression(**change: Any) -> dict[str, Any]:
    task = ob.Task(
        loss=lambda outputs, y: (outputs.squeeze(-1) - y).square(),
        metrics={"mae": lambda outputs, y: (outputs.squeeze(-1) - y).abs()},
    )
    return settings("regression", task=task) | change


def test_an_own_task_equals_the_built_in_one() -> None:
    own, built_in = ob.run(**regression()), ob.run(**settings("regression"))
    assert torch.equal(own.x, built_in.x)
    assert [line["mae"] for line in own.evaluations] == [line["mae"] for line in built_in.evaluations]
    function = ob.run(**settings("regression", task=lambda outputs, y: (outputs.squeeze(-1) - y).square()))
    assert torch.equal(function.x, built_in.x)
    assert function.summary["metric"] == "loss"


def test_a_run_stops_at_its_target(tmp_path: pathlib.Path) -> None:
    whole = ob.run(**regression(rounds=40))
    first = next(line for line in whole.evaluations if line["mae"] <= 1.5)
    evaluation = ob.Evaluation(every=2, target={"mae": 1.5}, stop_at_target=True)
    result = ob.run(**regression(rounds=40, evaluation=evaluation), out=tmp_path / "run")
    assert result.evaluations[-1]["version"] == first["version"] < 40
    assert result.summary["stopped"] == "the target was reached"
    assert result.summary["target_seconds"] == first["virtual_seconds"]
    assert (tmp_path / "run" / "summary.json").is_file()


def test_patience_ends_a_run_that_no_longer_improves() -> None:
    result = ob.run(**regression(rounds=60, evaluation=ob.Evaluation(every=1, patience=3)))
    values = [line["mae"] for line in result.evaluations]
    assert len(values) < 61
    assert len(values) - 1 - values.index(min(values)) == 3


def test_a_callback_stops_a_run_and_sees_the_model() -> None:
    class Stop(ob.Callback):
        def on_evaluation(self, run: Any, line: dict[str, Any]) -> None:
            self.norm = sum(float(p.detach().square().sum()) for p in run.model().parameters())
            if line["version"] >= 4:
                run.stop()

    stop = Stop()
    result = ob.run(**regression(rounds=60, callbacks=[stop]))
    assert result.summary["rounds"] == 4
    assert stop.norm == pytest.approx(float(result.x.square().sum()), rel=1e-5)


def test_metrics_per_client(tmp_path: pathlib.Path) -> None:
    change = {"evaluation": ob.Evaluation(every=4, per_client=True), "out": tmp_path / "run"}
    result = ob.run(**settings("classification", **change))
    rows = [row for row in result.client_evaluations if row["version"] == 8]
    assert [row["client"] for row in rows] == [0, 1, 2, 3]
    assert [row["examples"] for row in rows] == [10, 15, 35, 36]
    accuracies = np.array([row["accuracy"] for row in rows])
    line = result.evaluations[-1]
    assert line["accuracy_worst_decile"] == accuracies.min()
    assert line["jain"] == pytest.approx(accuracies.sum() ** 2 / (4 * np.square(accuracies).sum()))
    assert (tmp_path / "run" / "client_metrics.jsonl").read_text().count("\n") == 3


def test_test_examples_are_split_like_the_training_data() -> None:
    experiment: dict[str, Any] = {"scheduler": {"concurrency": 2, "buffer": 1}}
    experiment |= {"data": {"name": "digits", "clients": 5, "partition": {"name": "label-shards", "classes": 2}}}
    assembly = config.parse(experiment | {"evaluation": {"per_client": True}}).assemble()
    owners, data = assembly.evaluate.owners, assembly.context.data
    assert owners is not None
    labels, train = data.dataset.test_y.numpy(), data.label_counts()
    for client in range(5):
        assert set(labels[owners == client]) == set(np.flatnonzero(train[client]))
    assert (owners >= 0).all()


def test_a_sample_of_the_test_set_is_always_the_same() -> None:
    change = {"evaluation": ob.Evaluation(every=8, examples=10, batch_size=4)}
    first, second = (ob.run(**settings("regression", **change)) for _ in range(2))
    whole = ob.run(**settings("regression"))
    assert first.evaluations[-1]["mae"] == second.evaluations[-1]["mae"] != whole.evaluations[-1]["mae"]


def test_inputs_may_be_dicts_and_outputs_objects() -> None:
    x, y = arrays("classification")
    tree = {"features": x, "mask": np.ones_like(x)}
    data = ob.from_arrays(split(tree, 0, N), y[:N], split(tree, N), y[N:])
    one, stacked = (
        ob.run(**settings("classification", data=data, model=Wrapped, executor=name))
        for name in ("sequential", "vectorized")
    )
    plain = ob.run(**settings("classification", model=lambda: nn.Linear(5, 3)))
    torch.testing.assert_close(one.x, plain.x, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(stacked.x, one.x, rtol=1e-4, atol=1e-5)


class Streaming:
    """A metric of the whole set, with torchmetrics' interface."""

    higher_is_better = False

    def reset(self) -> None:
        self.worst = 0.0

    def update(self, outputs: Tensor, y: Tensor) -> None:
        self.worst = max(self.worst, float((outputs.squeeze(-1) - y).abs().max()))

    def compute(self) -> float:
        return self.worst


def test_a_metric_may_be_an_object_that_accumulates() -> None:
    task = ob.Task(loss=lambda out, y: (out.squeeze(-1) - y).square(), metrics={"worst": Streaming()})
    result = ob.run(**settings("regression", task=task, evaluation=ob.Evaluation(every=4, batch_size=7)))
    model = MODELS["regression"]()
    torch.nn.utils.vector_to_parameters(result.x, model.parameters())
    x, y = (torch.as_tensor(split(part, N)) for part in arrays("regression"))
    worst = (model(x)[:, 0] - y).abs().max().detach()
    assert result.evaluations[-1]["worst"] == pytest.approx(float(worst), rel=1e-5)
    assert result.summary["best_worst"] == min(line["worst"] for line in result.evaluations)


def test_without_test_data_metrics_are_those_of_the_training_data(caplog: pytest.LogCaptureFixture) -> None:
    x, y = arrays("regression")
    result = ob.run(**settings("regression", data=ob.from_arrays(x[:N], y[:N])))
    assert "no test data" in caplog.text
    same = ob.run(**settings("regression", data=ob.from_arrays(x[:N], y[:N], x[:N], y[:N])))
    assert result.evaluations[-1]["mae"] == same.evaluations[-1]["mae"]


def fails(outputs: Tensor, y: Tensor) -> Tensor:
    raise ValueError("no such thing")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": lambda o, y: (o.squeeze(-1) - y).square().mean()}, r"task.loss: it returned a single number.*none"),
        ({"task": lambda o, y: (o - y[:, None]).square().flatten()[:1]}, r"task.loss: it returned shape \[1\] for 2"),
        ({"task": lambda out, y: out.nothing}, "task.loss: it failed on the model's outputs.*AttributeError"),
        ({"task": ob.Task(metrics={"mae": fails})}, "task: Task has no loss"),
        ({"task": ob.Task(loss=lambda o, y: (o[:, 0] - y) ** 2, metrics={"mae": fails})}, "mae: it failed: ValueError"),
        ({"task": ob.Task(loss=lambda o, y: (o[:, 0] - y) ** 2, metrics={"mae": 3})}, "mae: 3 is neither a function"),
        ({"task": ob.Task(loss=lambda o, y: (o[:, 0] - y) ** 2, metrics={"seed": fails})}, "'seed' is a column"),
        ({"task": None}, r"task: classification needs one integer label per example, but the labels are float32"),
        ({"task": "regresion"}, "task: unknown name 'regresion'.*Did you mean 'regression'"),
        ({"task": "multilabel"}, "multilabel needs zeros and ones"),
        ({"model": lambda: nn.Linear(5, 2)}, r"model: the model's output is \[2, 2\], but the labels are \[2\]"),
        ({"evaluation": ob.Evaluation(target={"accuracy": 0.5})}, "unknown metric 'accuracy'; valid: mae, rmse, loss"),
        ({"evaluation": ob.Evaluation(every=2, target=0.5), "partition": ob.partitions.Dirichlet(), "clients": 3},
         "Dirichlet distributes class labels"),
    ],
)  # fmt: skip
def test_wrong_use_gets_a_clear_message(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ob.ConfigError, match=f"(?s){message}"):
        ob.run(**settings("regression", **change))


def test_a_target_needs_a_direction() -> None:
    task = ob.Task(loss=lambda o, y: (o[:, 0] - y) ** 2, metrics={"thing": lambda o, y: (o[:, 0] - y).abs()})
    with pytest.raises(ob.ConfigError, match="whether higher values of 'thing' are better is unknown"):
        ob.run(**settings("regression", task=task, evaluation=ob.Evaluation(target=1.0)))
    known = ob.Task(loss=task.loss, metrics={"thing": ob.Metric(task.metrics["thing"], higher_is_better=False)})
    result = ob.run(**settings("regression", task=known, evaluation=ob.Evaluation(target=100.0)))
    assert result.summary["target_seconds"] == 0
    with pytest.raises(ob.ConfigError, match=r"185\.0 is neither a fraction"):
        ob.run(**settings("classification", evaluation=ob.Evaluation(target=185)))
    with pytest.raises(ob.ConfigError, match="there is no target"):
        ob.Evaluation(stop_at_target=True)


def test_label_smoothing() -> None:
    task = ob.tasks.Classification(label_smoothing=0.2)
    out, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    assert torch.equal(task.loss(out, y), functional.cross_entropy(out, y, reduction="none", label_smoothing=0.2))


def test_tasks_in_toml() -> None:
    table = {"task": {"name": "language-modeling", "ignore": 0}, "evaluation": {"target": {"perplexity": 9.5}}}
    experiment = config.parse(table)
    assert experiment.task == ob.tasks.LanguageModeling(ignore=0)
    assert (
        config.parse(config.read_text(config.dump(experiment))) == experiment if hasattr(config, "read_text") else True
    )
    assert config.describe(experiment)["task"] == {"name": "language-modeling", "ignore": 0, "label_smoothing": 0.0}
    assert config.describe(experiment)["evaluation"]["target"] == {"perplexity": 9.5}
    own = config.parse({"task": "tests.tasks.test_tasks:squared"})
    assert config.describe(own)["task"] == {"name": "tests.tasks.test_tasks:squared"}
    assert math.isclose(float(own.task.loss(torch.ones(1), torch.zeros(1))[0]), 1.0)
    with pytest.raises(ob.ConfigError, match="Did you mean 'regression'"):
        config.parse({"task": "regressoin"})


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - y).square()


class Raises(nn.Linear):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        if self.training and type(self).calls > 40:
            raise ZeroDivisionError("broken model")
        return super().forward(x)


class Outcomes(ob.Callback):
    """Keeps how a run ended."""

    def __init__(self) -> None:
        self.ended: list[Any] = []

    def on_run_end(self, run: Any, outcome: Any) -> None:
        self.ended.append(outcome)


class DivergesLater(PlainLoop):
    """Ends its later jobs with a weight that is not finite."""

    def train(self, model: nn.Module, batches: Any, job: Any) -> None:
        super().train(model, batches, job)
        if job.version > 4:
            next(model.parameters()).data.fill_(float("inf"))


@pytest.mark.parametrize("executor", ["sequential", "processes"])
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": lambda: Raises(5, 1)}, ZeroDivisionError, "broken model"),
        ({"client": RaisesLater(lr=0.1)}, ZeroDivisionError, "broken loop"),
        ({"client": DivergesLater(lr=0.1)}, ob.DivergenceError, r"client \d diverged while training from version 5"),
    ],
    ids=["model", "loop", "divergence"],
)
def test_a_model_or_a_loop_that_raises_ends_the_run_as_failed(
    change: dict[str, Any], error: type[Exception], message: str, executor: str, tmp_path: pathlib.Path
) -> None:
    Raises.calls, outcomes, folder = 0, Outcomes(), tmp_path / "run"
    with pytest.raises(error, match=message):
        ob.run(**settings("regression", callbacks=[outcomes], out=folder, executor=executor, **change))
    status = json.loads((folder / "status.json").read_text())
    assert status["state"] == "failed"
    name = "" if issubclass(error, ob.OffbeatError) else f"{error.__name__}: "
    assert re.match(name + message, status["error"])
    (ended,) = outcomes.ended
    assert (ended.state, type(ended.error)) == ("failed", error)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) > 1, "in the middle of the run"
