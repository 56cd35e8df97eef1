"""Running a cell again: the stored result, a resumed run, or an error that says what differs."""

from __future__ import annotations

import io
import json
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from tests.support import interrupt_after
from tests.support.experiments import experiment
from torch import Tensor, nn

import offbeat as ob
from offbeat.runs import progress
from offbeat.runs.result import ProgressSnapshot


def settings(**more: Any) -> dict[str, Any]:
    base = experiment()
    own = {"data": base.data, "model": base.model, "algorithm": ob.CA2FL(), "scheduler": base.scheduler}
    return {**own, "rounds": 6, "evaluation": 3} | more


class Begun(ob.Callback):
    def __init__(self) -> None:
        self.count = 0

    def on_run_begin(self, run: ob.callbacks.RunInfo) -> None:
        self.count += 1


def test_the_same_call_returns_the_stored_result(tmp_path: pathlib.Path) -> None:
    begun = Begun()
    first = ob.run(**settings(), out=str(tmp_path / "run"), callbacks=[begun])
    files = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir()}
    again = ob.run(**settings(), out=tmp_path / "run", callbacks=[begun])
    assert begun.count == 1
    assert files == {p: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir()}, "nothing is written"
    assert torch.equal(first.x, again.x)
    assert again.summary == first.summary
    assert again.evaluations == first.evaluations
    ob.run(**settings(executor="vectorized"), out=tmp_path / "named")
    assert ob.run(**settings(), out=tmp_path / "named").summary["rounds"] == 6, "`auto` adopts what was chosen"


def test_an_interrupted_run_is_resumed_by_the_same_call(tmp_path: pathlib.Path) -> None:
    whole = ob.run(**settings(rounds=30))
    with pytest.raises(KeyboardInterrupt, match="interrupted at round"):
        ob.run(**settings(rounds=30), out=tmp_path / "run", watch=interrupt_after(7))
    with pytest.raises(ob.RunFolderError, match="resume=True"):
        ob.run(**settings(rounds=30), out=tmp_path / "run", resume=False)
    assert torch.equal(ob.run(**settings(rounds=30), out=tmp_path / "run").x, whole.x)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"algorithm": ob.CA2FL(eta=0.5)}, r"algorithm\.eta is 1\.0 there and 0\.5 here"),
        ({"rounds": 7}, "rounds is 6 there and 7 here"),
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"virtual_seconds": 5.0}, r"virtual_seconds is not set there and 5\.0 here"),
        ({"executor": "sequential"}, "executor is '.*' there and 'sequential' here"),
    ],
)
def test_another_experiment_is_named(tmp_path: pathlib.Path, change: dict[str, Any], expected: str) -> None:
    ob.run(**settings(executor="vectorized"), out=tmp_path / "run")
    with pytest.raises(ob.RunFolderError, match=f"another experiment.*{expected}.*overwrite=True"):
        ob.run(**(settings(executor="vectorized") | change), out=tmp_path / "run")


def test_many_differences_are_counted(tmp_path: pathlib.Path) -> None:
    ob.run(**settings(), out=tmp_path / "run")
    with pytest.raises(ob.RunFolderError, match=r"and \d+ more"):
        ob.run(**settings(algorithm=ob.FedBuff(), rounds=9, seed=3, client=ob.SGD(lr=0.7)), out=tmp_path / "run")


def test_overwriting_starts_over(tmp_path: pathlib.Path) -> None:
    ob.run(**settings(), out=tmp_path / "run")
    (tmp_path / "run/report.html").touch()
    result = ob.run(**settings(rounds=4), out=tmp_path / "run", overwrite=True)
    assert result.summary["rounds"] == 4
    assert not (tmp_path / "run/report.html").exists()
    assert ob.run(**settings(rounds=4), out=tmp_path / "new", overwrite=True).summary["rounds"] == 4


def test_only_run_folders_are_overwritten(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(ob.RunFolderError, match="exists and is not empty"):
        ob.run(**settings(), out=tmp_path, overwrite=True)
    ob.run(**settings(), out=tmp_path / "run")
    (tmp_path / "run/events.jsonl").touch()
    with pytest.raises(ob.RunFolderError, match="not the folder of a simulated run"):
        ob.run(**settings(), out=tmp_path / "run", overwrite=True)
    assert (tmp_path / "run/config.toml").is_file()
    assert (tmp_path / "mine.txt").read_text() == "keep"


def linear() -> nn.Module:
    return nn.Linear(12, 3)


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def doubled() -> nn.Module:
    module = Doubled(12, 3)
    module.__class__.__name__ = "Linear"
    return module


def squares(outputs: Tensor, labels: Tensor) -> Tensor:
    return ((outputs - nn.functional.one_hot(labels, 3)) ** 2).sum(1)


X, Y = np.random.default_rng(0).normal(size=(60, 12)).astype(np.float32), np.arange(60) % 3


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"model": lambda: nn.Linear(12, 3)}, {"model": lambda: nn.Linear(12, 3, bias=False)}, "model"),
        ({"model": lambda: linear()}, {"model": lambda: doubled()}, "output of the model"),
        ({"data": ob.from_arrays(X, Y)}, {"data": ob.from_arrays(X + 1, Y)}, "data"),
        ({"data": ob.from_arrays(X, Y)}, {"data": ob.from_arrays(X, Y[::-1].copy())}, "data"),
        ({"partition": [np.arange(30), np.arange(30, 60)], "clients": None},
         {"partition": [np.arange(20), np.arange(20, 60)], "clients": None}, "partition"),
        ({"task": ob.Task(loss=squares)}, {"task": ob.Task(loss=lambda o, y: 2 * squares(o, y))}, "loss"),
    ],
)  # fmt: skip
def test_a_changed_object_from_python_is_noticed(
    tmp_path: pathlib.Path, one: dict[str, Any], other: dict[str, Any], expected: str
) -> None:
    own = settings(
        data=ob.from_arrays(X, Y), model=lambda: linear(), clients=2, client=ob.SGD(batch_size=10),
        scheduler=ob.Buffered(concurrency=2, buffer=1), rounds=2,
    )  # fmt: skip
    ob.run(**(own | one), out=tmp_path / "run")
    assert ob.run(**(own | one), out=tmp_path / "run").summary["rounds"] == 2
    with pytest.raises(ob.RunFolderError, match=f"the {expected} is not the same"):
        ob.run(**(own | other), out=tmp_path / "run")


def test_random_initial_weights_do_not_make_another_module(tmp_path: pathlib.Path) -> None:
    """A cell that builds its module anew gives it other initial weights; it is the same experiment."""
    first = ob.run(**settings(model=nn.Linear(12, 3)), out=tmp_path / "run")
    again = ob.run(**settings(model=nn.Linear(12, 3)), out=tmp_path / "run")
    assert torch.equal(first.x, again.x)
    assert torch.equal(again.model.weight, first.model.weight)  # type: ignore[arg-type]


def test_a_config_without_a_newer_key_is_the_same(tmp_path: pathlib.Path) -> None:
    """A folder of an older version lacks the keys that came later; their defaults count."""
    ob.run(**settings(), out=tmp_path / "run")
    text = (tmp_path / "run/config.toml").read_text()
    assert 'precision = "tf32"\n' in text
    (tmp_path / "run/config.toml").write_text(text.replace('precision = "tf32"\n', ""))
    assert ob.run(**settings(), out=tmp_path / "run").summary["rounds"] == 6


def test_progress_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    seen: list[ProgressSnapshot] = []
    ob.run(**settings(), progress=True, watch=seen.append)
    assert "ca2fl: round 6" in capsys.readouterr().out
    assert seen[-1].counters.version == 6, "the caller's own watch is called as well"
    ob.run(**settings())
    assert capsys.readouterr().out == ""


def test_bars_are_live_in_jupyter_only_where_they_can_be_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_jupyter=True)
    found: list[object] = [object()]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found[0])
    assert progress.Bars(console).live
    assert not progress.Bars(console, quiet=True).live
    found[0] = None
    assert not progress.Bars(console).live, "without ipywidgets: plain lines"


def test_a_callback_stops_a_run() -> None:
    class Enough(ob.Callback):
        def on_evaluation(self, run: ob.callbacks.RunInfo, line: dict[str, Any]) -> None:
            if line["version"] >= 3:
                run.stop()

    result = ob.run(**settings(rounds=100), callbacks=[Enough()])
    assert (result.summary["rounds"], result.summary["stopped"]) == (3, "a callback asked for it")
    assert not result.interrupted


def test_hashes_of_objects_are_in_the_folder(tmp_path: pathlib.Path) -> None:
    ob.run(**settings(model=lambda: linear()), out=tmp_path / "own")
    ob.run(**settings(), out=tmp_path / "named")
    own, named = (json.loads((tmp_path / f"{name}/setting.json").read_text()) for name in ("own", "named"))
    assert set(own["objects"]) == {"model", "forward", "data", "partition", "task"}
    assert "objects" not in named, "everything has a name"
