"""The option `--track`."""

from __future__ import annotations

import json
import pathlib
import shutil

import pytest
from click.testing import CliRunner, Result
from tests.support.tracker_readers import Reader

from offbeat.cli import main
from offbeat.runs import run

TOML = """
rounds = 6
executor = "vectorized"
algorithm = "fedbuff"
scheduler = { concurrency = 6, buffer = 3 }
data = { name = "digits", clients = 10 }
evaluation = { every = 2 }
"""
OWN = """
import offbeat as ob

class Notes(ob.Callback):
    def __init__(self, place="notes.txt"):
        self.place = place

    def note(self, *words):
        with open(self.place, "a") as file:
            print(*words, file=file)

    def on_run_begin(self, run):
        self.note("on_run_begin", run.name, len(run.metrics))

    def on_evaluation(self, run, line):
        self.note("line", run.name, line["version"])

    def on_run_end(self, run, ending):
        self.note("on_run_end", run.name, ending.state)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text(TOML)
    (tmp_path / "notes_of_mine.py").write_text(OWN)
    return tmp_path


def offbeat(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_a_custom_callback_follows_a_run_through_interruption_and_resume(
    here: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run.Run.finished

    def finished(self: run.Run) -> bool:
        if self.counters.version == 3:
            self.interrupted.set()
        return whole(self)

    monkeypatch.setattr(run.Run, "finished", finished)
    track = ("--track", "notes_of_mine:Notes", "--track", "notes_of_mine:Notes=also.txt")
    first = offbeat("run", "my.toml", "--out", "r", *track)
    assert first.exit_code == 130
    again = "offbeat resume r --track notes_of_mine:Notes --track notes_of_mine:Notes=also.txt"
    assert again in first.output, "the command that goes on"
    monkeypatch.setattr(run.Run, "finished", whole)
    second = offbeat(*again.split()[1:], "--quiet")
    assert (second.exit_code, second.output) == (0, "")
    expected = ["on_run_begin r 0", "line r 0", "line r 2", "on_run_end r interrupted",
                "on_run_begin r 2", "line r 4", "line r 6", "on_run_end r finished"]  # fmt: skip
    assert (here / "notes.txt").read_text().splitlines() == expected
    assert (here / "also.txt").read_text().splitlines() == expected


def test_trackers_write_next_to_the_run_folder_or_to_a_given_place(kind: Reader, home: pathlib.Path) -> None:
    for folder in ("runs", "elsewhere"):
        (home / folder).mkdir()
        if (store := home / "mlflow.db").exists():
            shutil.copy(store, home / folder)
    result = offbeat("run", "my.toml", "--out", "runs/r", "--quiet", "--track", kind.name)
    assert (result.exit_code, result.output) == (0, "")
    assert list(kind.read(home / "runs")) == ["r"]
    place = "elsewhere/tensorboard" if kind.name == "tensorboard" else "elsewhere"
    assert offbeat("run", "my.toml", "--out", "q", "--quiet", "--track", f"{kind.name}={place}").exit_code == 0
    assert list(kind.read(home / "elsewhere")) == ["q"]


def test_trackers_of_a_sweep_write_into_its_folder(here: pathlib.Path) -> None:
    result = offbeat("sweep", "my.toml", "--seeds", "0,1", "--out", "s", "--track", "notes_of_mine:Notes")
    assert result.exit_code == 0, result.output
    assert "━" not in result.output, "no bar where there is no terminal"
    notes = (here / "notes.txt").read_text().splitlines()
    assert notes.count("on_run_end run/seed-0 finished") == notes.count("on_run_end run/seed-1 finished") == 1
    assert sum(note.startswith("line") for note in notes) == 8


@pytest.mark.parametrize("command", [["run", "my.toml"], ["sweep", "my.toml"], ["deploy", "local", "my.toml"]])
def test_a_mistake_is_reported_before_anything_is_written(command: list[str], here: pathlib.Path) -> None:
    if command[0] == "deploy":
        pytest.importorskip("flwr")
    before = sorted(here.rglob("*"))
    result = offbeat(*command, "--track", "tensorbord", "--out", "r")
    assert result.exit_code == 2
    assert "--track: unknown name 'tensorbord'" in result.output
    assert sorted(path for path in here.rglob("*") if "__pycache__" not in path.parts) == before


def test_the_setting_of_a_run_is_in_its_folder(kind: Reader, home: pathlib.Path) -> None:
    assert offbeat("run", "my.toml", "--out", "r", "--quiet", "--track", kind.name).exit_code == 0
    known = json.loads((home / f"r/track/{kind.name}.json").read_text())
    ((read,),) = kind.read(home).values()
    assert (known["id"], known["version"]) == (read.id, 6)
