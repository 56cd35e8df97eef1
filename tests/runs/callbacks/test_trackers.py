"""TensorBoard, MLflow and W&B contain every point of a run exactly once."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from tests.support.tracked_runs import lines, small, stopped
from tests.support.tracker_readers import Read, Reader

import offbeat as ob
from offbeat.runs import api
from offbeat.runs.callbacks import tracker
from offbeat.runs.callbacks.mlflow import _flat
from offbeat.runs.folder import read_status
from offbeat.runs.sweep import Sweep
from offbeat.server import checkpoint


def agree(read: Read, folder: pathlib.Path, kind: Reader, wall: bool = True) -> None:
    """Compare every value of every line; without `wall`, the wall-clock times of repeated work may differ."""
    expected = {
        (line["version"], name): value for line in lines(folder) for name, value in line.items() if name != "version"
    }
    found = {(step, name): value for step, name, value in read.points}
    assert len(read.points) == len(expected), "no point is missing, none is there twice"
    assert found.keys() == expected.keys()
    told = [point for point in expected if wall or point[1] != "wall_seconds"]
    assert [found[point] for point in told] == pytest.approx([expected[point] for point in told], rel=kind.digits)


def test_every_value_of_every_evaluation_is_tracked(kind: Reader, tmp_path: pathlib.Path) -> None:
    result = api.execute(small(), out=tmp_path / "run", callbacks=[kind.tracker()])
    ((name, (read,)),) = kind.read(tmp_path).items()
    assert name == "run"
    agree(read, tmp_path / "run", kind)
    assert read.state == "finished"
    assert read.summary["best_accuracy"] == result.summary["best_accuracy"]
    settings = read.config if kind.flat else dict(_flat(read.config))
    assert settings["algorithm.cache.name"] == "dense"
    assert str(settings["rounds"]) == "12"


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow"], indirect=True)
def test_relative_time_is_virtual_time(kind: Reader, home: pathlib.Path) -> None:
    """W&B has its own time axis but can plot over any metric."""
    stopped(home / "run", 5, [kind.tracker()])
    api.resume(home / "run", callbacks=[kind.tracker()])
    ((read,),) = kind.read(home).values()
    expected = {line["version"]: line["virtual_seconds"] for line in lines(home / "run")}
    assert read.times == pytest.approx(expected, abs=2e-3)


def test_a_resumed_run_continues_in_the_same_tracker_run(kind: Reader, home: pathlib.Path) -> None:
    stopped(home / "run", 5, [kind.tracker()])
    ((before,),) = kind.read(home).values()
    assert before.state != "finished"
    assert before.points
    api.resume(home / "run", callbacks=[kind.tracker()])
    ((after,),) = kind.read(home).values()
    assert after.id == before.id
    assert after.state == "finished"
    agree(after, home / "run", kind)


def test_evaluations_repeated_after_a_kill_are_tracked_once(kind: Reader, home: pathlib.Path) -> None:
    stopped(home / "run", 5, [kind.tracker()])
    checkpoint.clear(home / "run/checkpoint")  # as if it had been killed before the first
    api.resume(home / "run", callbacks=[kind.tracker()])
    ((read,),) = kind.read(home).values()
    agree(read, home / "run", kind, wall=kind.name == "tensorboard")


def test_lines_that_were_not_written_are_written_on_resume(
    kind: Reader, home: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies with unwritten lines; a run that was not tracked before gets all of its lines."""
    monkeypatch.setattr(tracker, "WRITE_SECONDS", 1e9)
    lost = kind.tracker()
    monkeypatch.setattr(lost, "on_run_end", lambda run, ending: None)
    stopped(home / "died", 5, [lost])
    kind.die()
    stopped(home / "untracked", 5, [])
    monkeypatch.setattr(tracker, "WRITE_SECONDS", 0.0)
    for name in ("died", "untracked"):
        api.resume(home / name, callbacks=[kind.tracker()])
        (read,) = kind.read(home)[name]
        agree(read, home / name, kind)


@pytest.mark.parametrize("kind", ["wandb"], indirect=True)
def test_lines_lost_by_the_wandb_process_are_written_on_resume(kind: Reader, home: pathlib.Path) -> None:
    """W&B writes blocks of 32 KiB: killed before the first, it leaves only the header of its file."""
    stopped(home / "run", 5, [kind.tracker()])
    kind.read(home)  # waits until all is written
    (file,) = home.glob("wandb/offline-run-*/*.wandb")
    file.write_bytes(file.read_bytes()[:7])
    api.resume(home / "run", callbacks=[kind.tracker()])
    file.unlink()
    ((read,),) = kind.read(home).values()
    agree(read, home / "run", kind)


def test_the_runs_of_a_sweep_are_told_apart(kind: Reader, home: pathlib.Path) -> None:
    table: dict[str, Any] = {
        "rounds": 4,
        "evaluation": {"every": 2},
        "scheduler": {"concurrency": 6, "buffer": 3},
        "data": {"name": "digits", "clients": 10},
        "executor": "vectorized",
    }
    plan = Sweep.plan(table, ["algorithm.name=fedbuff,ca2fl"], [0, 1])
    list(plan.run(home, None, lambda cells: [None] * len(cells), callbacks=[kind.tracker()]))
    found = kind.read(home)
    assert sorted(found) == sorted(cell.folder for cell in plan.cells)
    for name, (read,) in found.items():
        agree(read, home / name, kind)


def test_a_new_run_with_an_old_name_is_kept_separate(kind: Reader, home: pathlib.Path) -> None:
    place = home / "tensorboard" if kind.name == "tensorboard" else home
    known: set[str] = set()
    for group in ("first", "second"):
        api.execute(small(rounds=4), out=home / group / "run", callbacks=[kind.tracker(place)])
        reads = {read.id: read for same in kind.read(home).values() for read in same}
        (new,) = reads.keys() - known
        agree(reads[new], home / group / "run", kind)
        known = set(reads)
    assert len(known) == 2


def test_a_tracker_that_cannot_write_does_not_end_the_run(
    kind: Reader, home: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "file").touch()
    result = api.execute(small(rounds=2), out=home / "run", callbacks=[kind.tracker(home / "file" / "there")])
    assert not result.interrupted
    (record,) = caplog.records
    assert "failed in on_run_begin and is disabled for this run" in record.getMessage()


def test_a_run_that_fails_at_once_is_recorded_as_failed(kind: Reader, home: pathlib.Path) -> None:
    with pytest.raises(ob.DivergenceError):
        api.execute(small(client=ob.SGD(lr=1e38)), out=home / "run", callbacks=[kind.tracker()])
    assert read_status(home / "run")["state"] == "failed"
    ((read,),) = kind.read(home).values()
    assert read.state == ("" if kind.name == "tensorboard" else "failed")
