"""Evaluation per client and per label, with one model or with one per client, and its interruption."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import offbeat as ob
from offbeat.client import own_models
from offbeat.client.context import TrainingContext
from offbeat.client.evaluation import EvaluationInterrupted, Evaluator
from offbeat.client.owners import test_owners as owners_of
from offbeat.data import Natural, PartitionedDataset
from offbeat.errors import ConfigError
from offbeat.runs.config import parse
from offbeat.runs.result import ProgressSnapshot

SMALL: dict[str, Any] = {
    "scheduler": {"concurrency": 2, "buffer": 1},
    "data": {"name": "digits", "clients": 7, "partition": {"name": "label-shards", "classes": 3}},
    "model": {"name": "mlp", "hidden": [16]},
    "personalization": {"parameters": ["3"]},
}


def evaluator(**more: Any) -> Evaluator:
    return parse(SMALL | more).assemble().evaluate


def models_of(evaluate: Evaluator) -> Any:
    """Return a different model for each client."""
    layout, module = evaluate.context.layout, evaluate.context.module
    x = layout.read(module)

    def models(clients: Sequence[int]) -> tuple[Tensor, None]:
        noise = [torch.randn(x.shape, generator=torch.Generator().manual_seed(client)) for client in clients]
        return torch.stack([x + 0.1 * each for each in noise]), None

    return models


def test_stacked_models_give_the_figures_of_single_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    stacked = evaluator(evaluation={"per_label": True})
    single = evaluator(evaluation={"per_label": True, "batch_size": 7})
    seen: list[int] = []
    forward = own_models.StackedForward._stacked

    def counted(self: own_models.StackedForward, y: Tensor, *rest: Any) -> Any:
        seen.append(len(y))
        return forward(self, y, *rest)

    monkeypatch.setattr(own_models.StackedForward, "_stacked", counted)
    x = stacked.context.split.shared.read(stacked.context.module)
    a, b = (each(x, models=models_of(each))() for each in (stacked, single))
    assert sum(seen) == 7, "all clients of the first evaluation, none of the second"
    assert a.metrics["accuracy"] == b.metrics["accuracy"]
    assert a.metrics["loss"] == pytest.approx(b.metrics["loss"], rel=1e-5)
    for name in ("accuracy", "loss"):
        np.testing.assert_allclose(a.per_client[name], b.per_client[name], rtol=1e-5)
        np.testing.assert_allclose(a.per_label[name], b.per_label[name], rtol=1e-5)


def test_figures_per_client_and_label_are_means_over_their_examples() -> None:
    evaluate = evaluator(evaluation={"per_label": True})
    models, owners = models_of(evaluate), evaluate.owners
    assert owners is not None
    result = evaluate(torch.zeros(0), models=models)()
    correct = np.zeros(len(owners))
    module = evaluate.context.module.eval()
    for client in range(7):
        evaluate.context.layout.write(module, models([client])[0][0])
        own = owners == client
        with torch.no_grad():
            correct[own] = (module(evaluate.x[own]).argmax(dim=1) == evaluate.y[own]).numpy()
        assert result.per_client["accuracy"][client] == pytest.approx(correct[own].mean())
    assert result.metrics["accuracy"] == pytest.approx(correct.mean())
    for label in range(10):
        assert result.per_label["accuracy"][label] == pytest.approx(correct[evaluate.y.numpy() == label].mean())


def test_a_model_that_cannot_be_stacked_is_tested_alone() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Any:
            hidden = self.body(x)
            return self.head(hidden if float(hidden.detach().sum()) > 0 else -hidden)

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 5)).astype(np.float32), rng.integers(3, size=60)
    run = ob.run(
        data=ob.from_arrays(x, y, x, y, classes=3), clients=4, model=Branching, algorithm=ob.FedAvg(), rounds=2,
        scheduler=ob.Rounds(concurrency=2), client=ob.SGD(steps=1),
        personalization=ob.Personalization(parameters=("head",)), executor="sequential",
    )  # fmt: skip
    assert len([row for row in run.client_evaluations if row["version"] == 2]) == 4


def test_owners_of_test_examples_decide_where_clients_are_owners() -> None:
    x, y = np.zeros((9, 2), np.float32), np.arange(9) % 3
    owners, tested = [5, 5, 5, 2, 2, 2, 9, 9, 9], [2, 2, 9, 5, 7]
    data = ob.from_arrays(x, y, x[:5], y[:5], classes=3, owners=owners, test_owners=tested)
    keys, rng = np.array(owners), np.random.default_rng(0)

    def tested_by(parts: list[Any]) -> list[int]:
        context = TrainingContext(nn.Linear(2, 3), PartitionedDataset.of(data, parts), ob.SGD(), torch.device("cpu"))
        return [int(owner) for owner in owners_of(context)]

    assert tested_by(Natural().split(keys, 3, rng)) == [0, 0, 2, 1, -1], "no client has owner 7"
    assert tested_by([[6, 7, 8], [0, 1, 2, 3, 4, 5]]) == [1, 1, 0, 1, -1]
    spread = tested_by([[0, 3, 6], [1, 4, 7], [2, 5, 8]])
    assert spread == y[:5].tolist(), "by labels: client i has all examples with label i"
    with pytest.raises(ob.DataError, match="test_owners: one integer per test example expected"):
        ob.from_arrays(x, y, x[:5], y[:5], classes=3, owners=owners, test_owners=tested[:3])
    with pytest.raises(ob.DataError, match="give the owners of the training examples as well"):
        ob.from_arrays(x, y, x[:5], y[:5], classes=3, test_owners=tested)


def test_figures_reach_the_folder_callbacks_and_the_result(tmp_path: pathlib.Path) -> None:
    lines: list[dict[str, Any]] = []

    class Listener(ob.Callback):
        def on_evaluation(self, run: Any, line: dict[str, Any]) -> None:
            lines.append(line)

    table = SMALL | {"rounds": 4, "evaluation": {"every": 2, "per_label": True}, "executor": "sequential"}
    result = ob.execute(parse(table), out=tmp_path / "run", callbacks=[Listener()])
    assert "per_client" not in result.evaluations[-1]
    for name, rows, key in (
        ("client", result.client_evaluations, "client"),
        ("label", result.label_evaluations, "label"),
    ):
        file = [json.loads(line) for line in (tmp_path / "run" / f"{name}_metrics.jsonl").read_text().splitlines()]
        assert [line["version"] for line in file] == [0, 2, 4]
        last = {row[key]: row["accuracy"] for row in rows if row["version"] == 4}
        assert lines[-1][f"per_{name}"]["accuracy"] == file[-1]["accuracy"] == [last[i] for i in range(len(last))]
    assert result.evaluations[-1]["accuracy_worst_decile"] == min(lines[-1]["per_client"]["accuracy"])


def test_labels_of_another_kind_have_no_figures_per_label() -> None:
    x = np.zeros((8, 2), np.float32)
    with pytest.raises(ConfigError, match="no class labels") as caught:
        ob.run(
            data=ob.from_arrays(x, x[:, 0], x, x[:, 0]), clients=2, model=nn.Linear(2, 1), task="regression",
            algorithm=ob.FedAvg(), scheduler=ob.Rounds(concurrency=2), client=ob.SGD(batch_size=2),
            evaluation=ob.Evaluation(per_label=True),
        )  # fmt: skip
    assert caught.value.key == "evaluation.per_label"


def test_progress_is_reported_and_a_stop_takes_effect_between_batches() -> None:
    evaluate = evaluator(evaluation={"batch_size": 10})
    seen: list[float] = []

    def progress(done: int, count: int) -> None:
        seen.append(done / count)

    evaluate.progress = progress
    evaluate(torch.zeros(0), models=models_of(evaluate))()
    assert seen == sorted(seen)
    assert seen[-1] == 1
    assert len(seen) > 30
    seen.clear()
    evaluate.stopping = lambda: len(seen) >= 5
    with pytest.raises(EvaluationInterrupted):
        evaluate(torch.zeros(0), models=models_of(evaluate))
    assert len(seen) == 5


class Slow(nn.Module):
    """Takes a tenth of a second per test batch."""

    seconds = 0.1

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Any:
        time.sleep(0.0 if self.training or len(x) <= 2 else self.seconds)
        return self.head(self.body(x))


@pytest.mark.parametrize("personal", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_ctrl_c_ends_a_long_evaluation(
    personal: bool, first: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is interrupted while it evaluates ends within a second and can be resumed."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((3000, 5)).astype(np.float32), rng.integers(3, size=3000)
    shares: list[float] = []
    stopped: list[float] = []

    def watch(snapshot: ProgressSnapshot) -> None:
        monkeypatch.setattr(Slow, "seconds", 0.1 if first or snapshot.metrics else 0.0)
        if snapshot.testing is not None and (first or snapshot.metrics):
            shares.append(snapshot.testing)
            if len(shares) == 2:
                threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
                stopped.append(time.monotonic())

    settings: dict[str, Any] = {
        "data": ob.from_arrays(x, y, x, y, classes=3), "clients": 3, "model": Slow, "algorithm": ob.FedAvg(),
        "scheduler": ob.Rounds(concurrency=2), "rounds": 2, "client": ob.SGD(steps=1), "executor": "sequential",
        "evaluation": ob.Evaluation(batch_size=20), "out": tmp_path / "run",
        "personalization": ob.Personalization(parameters=("head",) if personal else ()),
    }  # fmt: skip
    monkeypatch.setattr(Slow, "seconds", 0.1 if first else 0.0)
    with pytest.raises(KeyboardInterrupt):
        ob.run(**settings, watch=watch)
    assert time.monotonic() - stopped[0] < 1.0, "the whole evaluation takes 15 seconds"
    assert 0 < shares[0] < shares[1] < 0.5
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "interrupted"
    monkeypatch.setattr(Slow, "seconds", 0.0)
    assert ob.run(**settings, resume=True).summary["rounds"] == 2
