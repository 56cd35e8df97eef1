"""What callbacks receive, and that they cannot harm a run."""

from __future__ import annotations

import json
import logging
import pathlib
import sys
import tomllib
from typing import Any

import pytest
import torch
from tests.support.tracked_runs import lines, small, stopped

import offbeat as ob
from offbeat.runs import api
from offbeat.runs.callbacks import TRACKERS, RunInfo, RunOutcome
from offbeat.runs.sweep import Sweep
from offbeat.runs.trackers import trackers
from offbeat.server import checkpoint

MINE = """
import offbeat as ob
class Mine(ob.Callback):
    def __init__(self, place="here"):
        self.place = place
"""


class Ear(ob.Callback):
    """Records every call."""

    def __init__(self) -> None:
        self.runs: list[RunInfo] = []
        self.lines: dict[str, list[dict[str, Any]]] = {}
        self.endings: list[tuple[str, RunOutcome]] = []

    def on_run_begin(self, run: RunInfo) -> None:
        self.runs.append(run)

    def on_evaluation(self, run: RunInfo, line: dict[str, Any]) -> None:
        self.lines.setdefault(run.name, []).append(line)

    def on_run_end(self, run: RunInfo, ending: RunOutcome) -> None:
        self.endings.append((run.name, ending))


def test_a_callback_is_called_at_the_start_once_per_evaluation_and_at_the_end(tmp_path: pathlib.Path) -> None:
    ear = Ear()
    result = api.execute(small(), out=tmp_path / "run", callbacks=[ear])
    (run,) = ear.runs
    assert (run.name, run.folder, run.home, list(run.metrics)) == ("run", tmp_path / "run", tmp_path, [])
    assert run.config == tomllib.loads((tmp_path / "run/config.toml").read_text())
    assert ear.lines == {"run": lines(tmp_path / "run")}
    assert [line["version"] for line in ear.lines["run"]] == [0, 2, 4, 6, 8, 10, 12]
    assert ear.endings == [("run", RunOutcome("finished", result.summary))]


def test_each_evaluation_is_reported_once_across_an_interruption(tmp_path: pathlib.Path) -> None:
    ear = Ear()
    so_far = stopped(tmp_path / "run", 5, [ear]).evaluations
    api.resume(tmp_path / "run", callbacks=[ear])
    first, second = ear.runs
    assert (list(first.metrics), list(second.metrics)) == ([], so_far)
    assert ear.lines["run"] == lines(tmp_path / "run")
    assert [ending.state for _, ending in ear.endings] == ["interrupted", "finished"]
    assert len(so_far) < 7, "it was stopped before its end"


def test_without_a_folder() -> None:
    ear = Ear()
    result = ob.run(
        data=ob.from_arrays([[0.0], [1.0]] * 20, [0, 1] * 20, [[0.0], [1.0]], [0, 1]), clients=4, callbacks=[ear],
        model=torch.nn.Linear(1, 2), algorithm=ob.FedBuff(), seed=3, rounds=2,
        scheduler=ob.Buffered(concurrency=2, buffer=1),
    )  # fmt: skip
    assert [(run.name, run.folder, run.home) for run in ear.runs] == [("fedbuff-seed3", None, None)]
    assert ear.lines["fedbuff-seed3"] == result.evaluations


def test_one_callback_serves_all_runs_of_a_sweep(tmp_path: pathlib.Path) -> None:
    table: dict[str, Any] = {
        "rounds": 2,
        "algorithm": {"name": "fedbuff"},
        "scheduler": {"concurrency": 6, "buffer": 3},
        "data": {"name": "digits", "clients": 10},
        "client": {"name": "sgd", "lr": 0.1},
    }
    plan, ear = Sweep.plan(table, ["client.lr=0.1,1e38"], [0, 1]), Ear()
    list(plan.run(tmp_path, None, lambda cells: [None] * len(cells), callbacks=[ear]))
    names = [cell.folder for cell in plan.cells]
    assert [run.name for run in ear.runs] == names
    assert {run.home for run in ear.runs} == {tmp_path}
    states = {name: ending.state for name, ending in ear.endings}
    assert states == dict(zip(names, ["finished", "finished", "failed", "failed"], strict=True))
    for name in names[:2]:
        assert ear.lines[name] == lines(tmp_path / name)
    failed = next(ending for name, ending in ear.endings if name == names[2])
    assert isinstance(failed.error, ob.DivergenceError)
    assert failed.summary is None


@pytest.mark.parametrize("where", ["on_run_begin", "on_evaluation", "on_run_end"])
def test_a_callback_that_raises_is_disabled_and_the_run_continues(
    where: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    class Clumsy(Ear):
        def __getattribute__(self, name: str) -> Any:
            if name in ("on_run_begin", "on_evaluation", "on_run_end"):
                calls.append(name)
            if name == where:
                raise ZeroDivisionError("clumsy me")
            return super().__getattribute__(name)

    ear = Ear()
    api.execute(small(), out=tmp_path / "plain")
    with caplog.at_level(logging.WARNING, "offbeat"):
        api.execute(small(), out=tmp_path / "run", callbacks=[Clumsy(), ear])
    (warning,) = [record.getMessage() for record in caplog.records]
    assert (
        warning == f"run: callback Clumsy failed in {where} and is disabled for this run: ZeroDivisionError: clumsy me"
    )
    assert calls.count(where) == 1
    assert (tmp_path / "run/model.safetensors").read_bytes() == (tmp_path / "plain/model.safetensors").read_bytes()
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "finished"
    assert ear.lines["run"] == lines(tmp_path / "run"), "the other one hears everything"
    assert len(ear.endings) == 1


def test_a_callback_cannot_change_what_is_recorded(tmp_path: pathlib.Path) -> None:
    class Vandal(ob.Callback):
        def on_evaluation(self, run: RunInfo, line: dict[str, Any]) -> None:
            line.clear()

    ear = Ear()
    result = api.execute(small(), out=tmp_path / "run", callbacks=[Vandal(), ear])
    assert len(result.evaluations[-1]) > 5
    assert ear.lines["run"] == lines(tmp_path / "run") == result.evaluations


def test_callbacks_are_notified_of_a_failed_run() -> None:
    ear = Ear()

    def watch(snapshot: Any) -> None:
        if snapshot.counters.version >= 4:
            raise RuntimeError("a mistake of somebody's")

    with pytest.raises(RuntimeError, match="a mistake"):
        api.execute(small(), watch=watch, callbacks=[ear])
    ((_, ending),) = ear.endings
    assert ending.state == "failed"
    assert "a mistake" in str(ending.error)


def test_names_of_trackers(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_ear.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    default, given = trackers(["my_ear:Mine", "my_ear:Mine=there"])
    assert (type(default).__name__, vars(default), vars(given)) == ("Mine", {"place": "here"}, {"place": "there"})
    for name, expected in {
        "tensorbord": "--track: unknown name 'tensorbord'; valid: tensorboard, mlflow, wandb. Did you mean",
        "my_ear:Other": "--track: 'my_ear' has no 'Other'",
        "pathlib:Path": "--track: 'pathlib:Path' returns PosixPath, not an offbeat.Callback",
    }.items():
        with pytest.raises(ob.ConfigError) as caught:
            trackers([name])
        assert str(caught.value).startswith(expected)


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_library_is_reported_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, TRACKERS[name].library, None)
    with pytest.raises(ob.ConfigError, match=rf"needs {name}; install it with: pip install 'offbeat\[track\]'"):
        trackers([name])


def test_evaluations_repeated_after_a_kill_are_reported_again(tmp_path: pathlib.Path) -> None:
    ear = Ear()
    stopped(tmp_path / "run", 5, [ear])
    before = len(ear.lines["run"])
    checkpoint.clear(tmp_path / "run/checkpoint")
    api.resume(tmp_path / "run", callbacks=[ear])
    assert list(ear.runs[1].metrics) == []
    assert ear.lines["run"][before:] == lines(tmp_path / "run")
