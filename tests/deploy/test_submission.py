"""Tests of offbeat.deploy.submission without a server app, and of resuming a deployment's folder."""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any, cast

import pytest

from offbeat.deploy import submission
from offbeat.deploy.flower_cli import Link
from offbeat.deploy.submission import LossMonitor, RunRequest, State, Submission
from offbeat.errors import OffbeatError, RunFolderError
from offbeat.files import write_json
from offbeat.flower import progress
from offbeat.flower.server import assemble, can_resume
from offbeat.runs import api
from offbeat.runs.config import dump, parse
from offbeat.runs.folder import Origin, RunFolder, in_use
from offbeat.runs.result import ProgressSnapshot, RunCounters


class FakeLink:
    """A SuperLink with a given answer."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.answer: tuple[str, str] | Exception = ("running", "")

    def submit(self, config: dict[str, Any]) -> str:
        self.config = config
        return "17"

    def status(self, run: str) -> tuple[str, str]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> FakeLink:
    monkeypatch.setattr(submission, "STATUS_SECONDS", 0.0)
    monkeypatch.setattr(submission, "UNLOCKED_SECONDS", 0.1)
    return FakeLink()


def submit(link: FakeLink, out: pathlib.Path) -> Submission:
    return Submission(cast("Link", link), RunRequest("seed = 0\n", out, modules=out.parent))


def test_the_error_of_a_server_app_that_does_not_start_is_reported(link: FakeLink, tmp_path: pathlib.Path) -> None:
    submission = submit(link, tmp_path / "run")
    assert link.config["modules"] == str(tmp_path)
    assert submission.poll() is State.STARTING
    link.answer = OffbeatError("unreachable")
    assert submission.poll() is State.STARTING, "the SuperLink may be restarting"
    link.answer = ("finished:failed", "ServerApp failed with exception: no such data")
    assert submission.poll() is State.FAILED
    assert submission.error == "no such data"


def test_the_state_of_a_server_app_follows_from_its_folder(link: FakeLink, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "run"
    submission = submit(link, out)
    folder = RunFolder.create(out, "", Origin())
    folder.status("running")
    progress.write(out, ProgressSnapshot(RunCounters(version=3), 9, None, [{"version": 3, "accuracy": 0.5}]))
    assert submission.poll() is State.RUNNING
    assert submission.snapshot is not None
    assert (submission.snapshot.counters.version, submission.snapshot.real) == (3, True)
    folder.close()
    assert not in_use(out)
    assert submission.poll() is State.RUNNING, "it may be about to write its status"
    time.sleep(0.2)
    assert submission.poll() is State.FAILED
    assert "died without an error message" in submission.error
    write_json(out / "status.json", {"state": "finished"})
    assert submission.poll() is State.FINISHED
    assert submit(link, out).poll() is State.STARTING, "the progress of an earlier submission is ignored"


def test_the_error_of_a_failed_run_is_reported(link: FakeLink, tmp_path: pathlib.Path) -> None:
    submission = submit(link, tmp_path)
    progress.write(tmp_path, ProgressSnapshot(RunCounters(), 9, None, []))
    write_json(tmp_path / "status.json", {"state": "failed", "error": "the disk is full"})
    submission.poll()
    time.sleep(0.2)
    assert submission.poll() is State.FAILED
    assert submission.error == "the disk is full"


def test_losses_are_reported_once_per_job(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "events.jsonl"
    losses = LossMonitor(tmp_path)
    assert losses.poll() == []
    lines: list[dict[str, Any]] = [
        {"sent": 1, "client": 4, "version": 0}, {"sent": 2, "client": 5, "version": 0},
        {"lost": 1, "reason": "the node went offline"}, {"arrived": 2},
    ]  # fmt: skip
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"lost": 2, "rea')
    assert losses.poll() == ["client 4: the node went offline"]
    assert losses.poll() == []
    assert (losses.arrived, losses.failed_clients) == (1, {4})
    file.write_text("")
    assert losses.poll() == [], "a resumed run truncates its log"


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_a_log_that_was_truncated_and_grew_again_is_followed(kept: int, tmp_path: pathlib.Path) -> None:
    """The supervisor may be busy while a resumed run truncates its log and writes more than it dropped."""
    file = tmp_path / "events.jsonl"
    lines = [
        '{"sent": 1, "client": 4, "at": 0.5}\n', '{"nodes": [4], "at": 1.25}\n', '{"lost": 1, "reason": "crashed"}\n'
    ]  # fmt: skip
    file.write_text("".join(lines))
    losses = LossMonitor(tmp_path)
    assert losses.poll() == [], "losses before the monitor was created are not reported"
    with file.open("a") as log:
        log.write('{"tick": null, "at": 7.0}\n')
    assert losses.poll() == []
    grown = ['{"nodes": [], "at": 2.0}\n'] * 3 + ['{"sent": 2, "client": 5}\n', '{"lost": 2, "reason": "offline"}\n']
    file.write_text("".join(lines[:kept] + grown))
    assert losses.poll() == ["client 5: offline"]
    assert losses.poll() == []


EXPERIMENT: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "clients": 2},
    "algorithm": {"name": "fedbuff"},
    "scheduler": {"name": "buffered", "concurrency": 2, "buffer": 1},
}


def test_a_folder_is_resumed_with_the_same_experiment_only(tmp_path: pathlib.Path) -> None:
    experiment = parse(dict(EXPERIMENT))
    assembly = assemble(experiment, None)
    assert not can_resume(tmp_path, assembly)
    (tmp_path / "config.toml").write_text(api.resolved(experiment, assembly))
    assert can_resume(tmp_path, assembly)
    with pytest.raises(RunFolderError, match="another experiment"):
        can_resume(tmp_path, assemble(parse({**EXPERIMENT, "seed": 5}), None))
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(RunFolderError, match="already finished"):
        can_resume(tmp_path, assembly)


def test_a_deployment_is_not_resumed_in_the_simulator(tmp_path: pathlib.Path) -> None:
    experiment = parse(dict(EXPERIMENT))
    (tmp_path / "config.toml").write_text(dump(experiment))
    (tmp_path / "events.jsonl").touch()
    with pytest.raises(RunFolderError, match="offbeat deploy"):
        api.resume(tmp_path)
