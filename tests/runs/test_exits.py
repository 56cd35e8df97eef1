"""However a run ends, its folder says how and why, and its callbacks are told."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tests.support import wait_until
from tests.support.experiments import experiment
from torch import nn

import offbeat as ob
from offbeat.cli import main
from offbeat.runs import api, config
from offbeat.runs.custom import CustomModel
from offbeat.runs.data import Data
from offbeat.runs.folder import read_status
from offbeat.runs.interrupt import Interruption, interruptible, preparing
from offbeat.runs.sweep import Sweep

CELLS: dict[str, Any] = {
    "rounds": 4,
    "executor": "sequential",
    "data": {"name": "synthetic", "clients": 6},
    "scheduler": {"concurrency": 4, "buffer": 2},
}


class Ends(ob.Callback):
    """Notes how runs end."""

    def __init__(self) -> None:
        self.outcomes: list[ob.callbacks.RunOutcome] = []

    def on_run_end(self, run: ob.callbacks.RunInfo, outcome: ob.callbacks.RunOutcome) -> None:
        self.outcomes.append(outcome)


class Hooked(nn.Module):
    """A linear model that calls a function in one of its two modes, once it is armed."""

    armed = False

    def __init__(self, training: bool, call: Callable[[], Any]) -> None:
        super().__init__()
        self.layer, self.when, self.call = nn.Linear(12, 3), training, call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if Hooked.armed and self.training == self.when:
            self.call()
        out: torch.Tensor = self.layer(x)
        return out


class Arm(Ends):
    """Arms the model when the run begins, so that checks before it pass."""

    def on_run_begin(self, run: ob.callbacks.RunInfo) -> None:
        Hooked.armed = True


@pytest.fixture(autouse=True)
def disarmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hooked, "armed", False)


def hooked(training: bool, call: Callable[[], Any]) -> ob.Experiment:
    return experiment(executor="sequential", model=CustomModel(make=lambda: Hooked(training, call)))


def broken() -> None:
    raise ValueError("a bug of the user")


@pytest.mark.parametrize("training", [True, False])
def test_a_model_that_raises_ends_its_run_as_failed(training: bool, tmp_path: pathlib.Path) -> None:
    ends = Arm()
    with pytest.raises(ValueError, match="a bug of the user"):
        api.execute(hooked(training, broken), out=tmp_path / "run", callbacks=[ends])
    status = read_status(tmp_path / "run")
    assert (status["state"], status["error"]) == ("failed", "ValueError: a bug of the user")
    assert [(outcome.state, type(outcome.error)) for outcome in ends.outcomes] == [("failed", ValueError)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_an_evaluation_interrupts_the_run(number: signal.Signals, tmp_path: pathlib.Path) -> None:
    ends = Arm()
    cut = hooked(False, lambda: os.kill(os.getpid(), number))
    small_batches = dataclasses.replace(cut, evaluation=ob.Evaluation(batch_size=7))
    assert api.execute(small_batches, out=tmp_path / "run", callbacks=[ends]).interrupted
    status = read_status(tmp_path / "run")
    assert (status["state"], status["reason"]) == ("interrupted", {2: "Ctrl-C", 15: "SIGTERM"}[number])
    assert [outcome.state for outcome in ends.outcomes] == ["interrupted"]


def test_a_second_signal_ends_the_run_at_once(tmp_path: pathlib.Path) -> None:
    """Such as in local training that takes long; the folder is closed although the turn is not complete."""
    ends, calls = Arm(), list[int]()

    def twice() -> None:
        calls.append(1)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        api.execute(hooked(True, twice), out=tmp_path / "run", callbacks=[ends])
    assert len(calls) == 1
    assert read_status(tmp_path / "run")["state"] == "interrupted"
    assert [outcome.state for outcome in ends.outcomes] == ["interrupted"]
    assert not (tmp_path / "run/.lock").exists()


def test_a_signal_before_the_run_begins_ends_the_program_at_once(tmp_path: pathlib.Path) -> None:
    """Loading data may take minutes, and nothing is lost."""

    def slow() -> ob.Dataset:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the data is still loaded")

    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        ob.run(data=slow, clients=3, model=nn.Linear(4, 2), algorithm=ob.FedBuff(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_sweep_closes_the_runs_that_it_has_begun(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, calls = api.begin, list[int]()

    def begin(*args: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise ob.RunFolderError("no space left")
        return plain(*args, **named)

    monkeypatch.setattr(api, "begin", begin)
    plan = Sweep.plan(CELLS | {"executor": "vectorized"}, [], [0, 1])
    with pytest.raises(ob.RunFolderError, match="no space left"):
        list(plan.run(tmp_path, None, lambda cells: [None] * len(cells)))
    assert read_status(tmp_path / "run/seed-0")["state"] == "interrupted"


def test_a_sweep_repeats_runs_that_failed_early_with_other_settings(tmp_path: pathlib.Path) -> None:
    def summaries(lr: float) -> list[Any]:
        plan = Sweep.plan(CELLS | {"client": {"lr": lr}}, [], [0])
        return [summary for _, summary in plan.run(tmp_path, None, lambda cells: [None] * len(cells))]

    assert summaries(1e38) == [{}]
    assert read_status(tmp_path / "run/seed-0")["state"] == "failed"
    assert summaries(0.1)[0]["rounds"] == 4


def test_files_of_others_in_a_folder_that_failed_early_are_safe(tmp_path: pathlib.Path) -> None:
    bad = config.parse(CELLS | {"client": {"lr": 1e38}})
    with pytest.raises(ob.DivergenceError):
        api.execute(bad, out=tmp_path / "run")
    (tmp_path / "run/notes.txt").write_text("mine")
    with pytest.raises(ob.RunFolderError, match="is not empty"):
        api.execute(bad, out=tmp_path / "run")
    assert (tmp_path / "run/notes.txt").read_text() == "mine"


def test_a_comparison_lists_a_run_that_failed_early(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ob.DivergenceError):
        api.execute(config.parse(CELLS | {"client": {"lr": 1e38}}), out=tmp_path / "run")
    shown = CliRunner().invoke(main, ["compare", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "failed" in shown.output


def test_a_signal_in_the_first_moments_of_a_run_leaves_a_folder_that_tells(tmp_path: pathlib.Path) -> None:
    """The folder exists, but the first evaluation is not done yet."""
    command = [sys.executable, "-m", "offbeat", "run", "preset:digits-demo", "--set", "rounds=1000000"]
    process = subprocess.Popen([*command, "--quiet", "--out", str(tmp_path / "run")], stderr=subprocess.PIPE)
    status = tmp_path / "run/status.json"
    assert wait_until(lambda: status.exists() or process.poll() is not None)
    process.terminate()
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert read_status(tmp_path / "run")["state"] == "interrupted"


def test_an_interruption_while_preparing_is_immediate() -> None:
    with interruptible() as event:
        with pytest.raises(KeyboardInterrupt, match="Ctrl-C"), preparing(event):
            os.kill(os.getpid(), signal.SIGINT)
        assert not event.is_set()
    other = Interruption()
    other.interrupt("a test")
    with pytest.raises(KeyboardInterrupt, match="a test"), preparing(other):
        pass


def test_data_that_cannot_be_read_leaves_no_folder(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ob.OffbeatError):
        api.execute(experiment(data=Data(clients=10_000_000)), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
