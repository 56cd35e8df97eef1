"""Runs whose main metric is not accuracy: names, units and directions in tables and figures."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from torch import nn

import offbeat as ob
from offbeat.cli import main
from offbeat.report import plots, read

rng = np.random.default_rng(0)
X = rng.normal(size=(80, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """Return run folders of a regression and of a multi-label problem."""
    home = tmp_path_factory.mktemp("runs")
    several = (X[:, :3] > 0).astype(int)
    settings: dict[str, tuple[Any, int, dict[str, float]]] = {
        "regression": (X.sum(axis=1), 1, {"mae": 0.5}), "multilabel": (several, 3, {"f1": 0.8}),
    }  # fmt: skip
    for task, (y, outputs, target) in settings.items():
        ob.run(
            data=ob.from_arrays(X[:60], y[:60], X[60:], y[60:]), clients=5, task=task,
            model=lambda outputs=outputs: nn.Linear(4, outputs),
            algorithm=ob.FedBuff(), scheduler=ob.Buffered(concurrency=3, buffer=2), rounds=30, out=home / task,
            client=ob.SGD(lr=0.1, batch_size=4), evaluation=ob.Evaluation(every=2, target=target),
        )  # fmt: skip
    return {task: home / task for task in settings}


def compared(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["compare", *arguments])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def first(folder: pathlib.Path, name: str, reached: Any) -> int:
    return next(int(line["version"]) for line in read.read(folder).metrics if reached(line[name]))


def test_targets_are_given_in_the_unit_of_the_metric(folders: dict[str, pathlib.Path]) -> None:
    errors, scores = folders["regression"], folders["multilabel"]
    shown = compared(str(errors), "--target", "1.25")
    assert "mae of the last evaluation" in shown
    assert "uploaded bytes until 1.25" in shown
    assert f" {first(errors, 'mae', lambda v: v <= 1.25)} " in shown
    shown = compared(str(scores), "--target", "60")
    assert "f1 (%)" in shown
    assert "uploaded bytes until 60 %" in shown
    assert f" {first(scores, 'f1', lambda v: v >= 0.6)} " in shown
    assert "until 0.5" in compared(str(errors)), "the run's own target"
    result = CliRunner().invoke(main, ["compare", str(scores), "--target", "101"])
    assert "101 is neither a fraction nor a percentage; give f1 as 0.85 or 85" in result.stderr


def test_figures_are_named_after_the_metric(folders: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    result = CliRunner().invoke(main, ["report", str(folders["regression"]), "--png", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.glob("mae-*.png")} == {
        f"mae-{over}.png" for over in ("virtual_seconds", "version", "bytes_up")
    }
    axes = plots.curves({"r": [folders["regression"]]}, target=0.5).axes[0]
    assert axes.get_ylabel() == "test mae"
    assert axes.lines[0].get_ydata()[-1] == read.read(folders["regression"]).metrics[-1]["mae"]  # type: ignore[index]


def test_experiments_with_another_metric_are_left_out(folders: dict[str, pathlib.Path]) -> None:
    axes = plots.curves({name: [folder] for name, folder in folders.items()}).axes[0]
    assert [line.get_label() for line in axes.lines] == ["regression"]


def test_the_table_after_a_run(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Percentages as percentages, and a target of another metric under its name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "several.py").write_text(
        "import numpy as np, offbeat as ob\n"
        "def load():\n"
        "    x = np.random.default_rng(0).normal(size=(60, 4))\n"
        "    return ob.from_arrays(x[:40], x[:40, :3] > 0, x[40:], x[40:, :3] > 0)\n"
    )
    table = 'rounds = 3\ntask = "multilabel"\ndata = { name = "several:load", clients = 10 }\n'
    (tmp_path / "x.toml").write_text(table + "evaluation = { target = { loss = 9.0 } }\n")
    shown = CliRunner().invoke(main, ["run", "x.toml", "--out", "r"]).output
    assert "f1 (%)" in shown
    assert "s to loss 9.0" in shown
    best = read.read(tmp_path / "r").summary["f1"]
    assert f"{100 * best:.1f}" in shown
    sweep = CliRunner().invoke(main, ["sweep", "x.toml", "--seeds", "0,1", "--out", "s"]).output
    assert pathlib.Path("s/f1.png").is_file()
    assert "figure  s/f1.png" in sweep


def test_a_main_metric_that_is_undefined_for_some_models(tmp_path: pathlib.Path) -> None:
    """Such as the area under a curve without a positive example: it is shown as nan, and the best is another value."""
    values = iter([math.nan, 0.5, 0.25, math.nan, 0.5])

    class Sometimes:
        higher_is_better = True

        def reset(self) -> None: ...

        def update(self, outputs: Any, labels: Any) -> None: ...

        def compute(self) -> float:
            return next(values)

    task = ob.Task(loss=lambda out, y: (out[:, 0] - y).square(), metrics={"auc": Sometimes()})
    result = ob.run(
        data=ob.from_arrays(X, X.sum(axis=1)), clients=5, model=lambda: nn.Linear(4, 1), task=task, rounds=8,
        algorithm=ob.FedBuff(), scheduler=ob.Buffered(concurrency=3, buffer=2), out=tmp_path / "run",
        client=ob.SGD(lr=0.01, batch_size=4), evaluation=ob.Evaluation(every=2, patience=3),
    )  # fmt: skip
    assert result.summary["best_auc"] == 0.5
    assert result.summary["stopped"] == "auc did not improve in 3 evaluations"
    record = read.read(tmp_path / "run")
    assert record.state == "finished", record.problem
    assert [line["auc"] for line in record.metrics[1:3]] == [0.5, 0.25]
    assert math.isnan(record.metrics[0]["auc"])
    page = tmp_path / "page.html"
    for command in (["report", str(tmp_path / "run"), "--html", str(page)], ["compare", str(tmp_path / "run")]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0, done.output
    assert "NaN" not in page.read_text().split('type="application/json"')[1].split("</script>")[0]
