"""A server app seen from outside, without one."""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any, cast

import pytest

from offbeat.deploy import submission
from offbeat.deploy.flower_cli import Link
from offbeat.deploy.submission import Losses, Order, State, Submission
from offbeat.errors import OffbeatError, RunFolderError
from offbeat.files import write_json
from offbeat.flower import progress
from offbeat.flower.server import assemble, is_begun
from offbeat.runs import api
from offbeat.runs.config import dump, parse
from offbeat.runs.folder import Origin, RunFolder, in_use
from offbeat.runs.result import ProgressSnapshot, RunCounters


class FakeLink:
    """Flower, which says what it is told to."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}
        self.answer: tuple[str, str] | Exception = ("running", "")

    def submit(self, told: dict[str, Any]) -> str:
        self.told = told
        return "17"

    def status(self, run: str) -> tuple[str, str]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> FakeLink:
    monkeypatch.setattr(submission, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(submission, "GONE_SECONDS", 0.1)
    return FakeLink()


def submitted(link: FakeLink, out: pathlib.Path) -> Submission:
    return Submission(cast("Link", link), Order("seed = 0\n", out, modules=out.parent))


def test_a_server_app_that_fails_at_once_is_quoted(link: FakeLink, tmp_path: pathlib.Path) -> None:
    it = submitted(link, tmp_path / "run")
    assert link.told["modules"] == str(tmp_path)
    assert it.look() is State.STARTING
    link.answer = OffbeatError("nobody answers")
    assert it.look() is State.STARTING, "the SuperLink may be away for a moment"
    link.answer = ("finished:failed", "ServerApp failed with exception: no such data")
    assert it.look() is State.FAILED
    assert it.error == "no such data"


def test_the_folder_tells_how_a_server_app_fares(link: FakeLink, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "run"
    it = submitted(link, out)
    folder = RunFolder.create(out, "", Origin())
    folder.status("running")
    progress.write(out, ProgressSnapshot(RunCounters(version=3), 9, None, [{"version": 3, "accuracy": 0.5}]))
    assert it.look() is State.RUNNING
    assert it.glance is not None
    assert (it.glance.counters.version, it.glance.real) == (3, True)
    folder.close()
    assert not in_use(out)
    assert it.look() is State.RUNNING, "it may be writing its last words"
    time.sleep(0.2)
    assert it.look() is State.FAILED
    assert "without a word" in it.error
    write_json(out / "status.json", {"state": "finished"})
    assert it.look() is State.FINISHED
    assert submitted(link, out).look() is State.STARTING, "a new one does not take over the old one's progress"


def test_an_error_of_the_run_is_quoted(link: FakeLink, tmp_path: pathlib.Path) -> None:
    it = submitted(link, tmp_path)
    progress.write(tmp_path, ProgressSnapshot(RunCounters(), 9, None, []))
    write_json(tmp_path / "status.json", {"state": "failed", "error": "the disk is full"})
    it.look()
    time.sleep(0.2)
    assert it.look() is State.FAILED
    assert it.error == "the disk is full"


def test_losses_are_told_once_and_by_client(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "events.jsonl"
    losses = Losses(tmp_path)
    assert losses.news() == []
    lines: list[dict[str, Any]] = [
        {"sent": 1, "client": 4, "version": 0}, {"sent": 2, "client": 5, "version": 0},
        {"lost": 1, "reason": "the node is gone"}, {"arrived": 2},
    ]  # fmt: skip
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"lost": 2, "rea')
    assert losses.news() == ["client 4: the node is gone"]
    assert losses.news() == []
    assert (losses.arrived, losses.clients) == (1, {4})
    file.write_text("")
    assert losses.news() == [], "a run that goes on cuts its log"


EXPERIMENT: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "clients": 2},
    "algorithm": {"name": "fedbuff"},
    "scheduler": {"name": "buffered", "concurrency": 2, "buffer": 1},
}


def test_a_folder_goes_on_with_its_own_experiment_only(tmp_path: pathlib.Path) -> None:
    experiment = parse(dict(EXPERIMENT))
    assembly = assemble(experiment, None)
    assert not is_begun(tmp_path, assembly)
    (tmp_path / "config.toml").write_text(api.resolved(experiment, assembly))
    assert is_begun(tmp_path, assembly)
    with pytest.raises(RunFolderError, match="another experiment"):
        is_begun(tmp_path, assemble(parse({**EXPERIMENT, "seed": 5}), None))
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(RunFolderError, match="finished"):
        is_begun(tmp_path, assembly)


def test_a_deployment_is_not_resumed_in_the_simulator(tmp_path: pathlib.Path) -> None:
    experiment = parse(dict(EXPERIMENT))
    (tmp_path / "config.toml").write_text(dump(experiment))
    (tmp_path / "events.jsonl").touch()
    with pytest.raises(RunFolderError, match="offbeat deploy"):
        api.resume(tmp_path)
