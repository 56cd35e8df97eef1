"""Tests of the supervision loop and of the task that takes a run to its end, without Flower."""

from __future__ import annotations

import pathlib
import sys
import threading
import time
from typing import Any, ClassVar, cast

import pytest
from tests.support import wait_until

from offbeat.deploy import run_monitor
from offbeat.deploy.flower_cli import Link
from offbeat.deploy.processes import Program, Programs
from offbeat.deploy.run_monitor import RunMonitor
from offbeat.deploy.submission import RunRequest, State
from offbeat.deploy.supervisor import MAX_REPEATS, RepeatLimiter, Supervisor
from offbeat.errors import OffbeatError
from offbeat.runs.result import ProgressSnapshot, RunCounters


class FakeTask:
    """A task that finishes after some polls."""

    def __init__(self, polls: int | None) -> None:
        self.polls, self.interruptions = polls, 0

    def poll(self) -> bool:
        if self.polls is not None:
            self.polls -= 1
        return self.polls == 0

    def interrupt(self) -> None:
        self.interruptions += 1


def failing_program(tmp_path: pathlib.Path, **options: Any) -> Program:
    command = [sys.executable, "-c", "raise SystemExit('no such key')"]
    return Program("SuperNode", command, {}, tmp_path / "supernode.log", **options)


def supervise(programs: Programs, task: FakeTask) -> bool:
    return Supervisor(programs, threading.Event(), lambda message: None, 0.01).run(task)


def test_supervision_ends_with_its_task() -> None:
    assert supervise(Programs(), FakeTask(3))


def test_an_interruption_ends_the_task() -> None:
    interrupted, task = threading.Event(), FakeTask(None)
    interrupted.set()
    assert not Supervisor(Programs(), interrupted, lambda message: None).run(task)
    assert task.interruptions == 1


def test_exits_are_reported_and_followed_by_a_restart(tmp_path: pathlib.Path) -> None:
    reports: list[str] = []
    with Programs() as programs:
        program = programs.start(failing_program(tmp_path, restart_delay=lambda output: 0.01))
        interrupted = threading.Event()

        def interrupt() -> None:
            while program.starts <= MAX_REPEATS + 1:
                time.sleep(0.01)
            interrupted.set()

        threading.Thread(target=interrupt, daemon=True).start()
        assert not Supervisor(programs, interrupted, RepeatLimiter(reports.append), 0.01).run()
    expected = "SuperNode exited (status 1); restarting it in 0 s; end of supernode.log:\nno such key"
    assert reports == [expected] * MAX_REPEATS, "the same report is repeated a few times only"


def test_the_report_of_a_killed_program_does_not_quote_its_log(tmp_path: pathlib.Path) -> None:
    code = "import os, signal; print('ERROR: unrelated', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    with Programs() as programs:
        log = tmp_path / "superlink.log"
        programs.start(Program("SuperLink", [sys.executable, "-c", code], {}, log, restart=False))
        with pytest.raises(OffbeatError, match=r"^SuperLink exited \(SIGKILL\); see superlink\.log$"):
            supervise(programs, FakeTask(None))


def test_the_exit_of_a_program_without_restart_is_an_error(tmp_path: pathlib.Path) -> None:
    with Programs() as programs:
        programs.start(failing_program(tmp_path, restart=False))
        with pytest.raises(OffbeatError, match=r"SuperNode exited \(status 1\); end of supernode\.log:\nno such key"):
            supervise(programs, FakeTask(None))


class FakeLink:
    """A SuperLink that accepts every run."""

    def __init__(self, home: pathlib.Path) -> None:
        self.home, self.stopped = home, list[str]()

    def stop(self, run: str) -> None:
        self.stopped.append(run)


class FakeSubmission:
    """A submission with a scripted outcome: the version at which the server app fails, or None if it finishes."""

    script: ClassVar[list[int | Exception | None]] = []
    submitted = 0

    def __init__(self, link: Link, request: RunRequest) -> None:
        outcome = self.script.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        FakeSubmission.submitted += 1
        self.run, self.version, self.error = str(self.submitted), outcome, "out of memory"

    @property
    def snapshot(self) -> ProgressSnapshot | None:
        return ProgressSnapshot(RunCounters(version=self.version or 0), 9, None, [])

    def poll(self) -> State:
        return State.FINISHED if self.version is None else State.FAILED


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> list[int | Exception | None]:
    outcomes: list[int | Exception | None] = []
    monkeypatch.setattr(FakeSubmission, "script", outcomes)
    monkeypatch.setattr(FakeSubmission, "submitted", 0)
    monkeypatch.setattr(run_monitor, "Submission", FakeSubmission)
    return outcomes


def monitor(tmp_path: pathlib.Path, reports: list[str], **options: Any) -> RunMonitor:
    link, superexec = cast("Link", FakeLink(tmp_path)), cast("Program", None)
    return RunMonitor(
        link, RunRequest("", tmp_path / "run"), superexec, lambda snapshot: None, reports.append, **options
    )


def finish(task: RunMonitor) -> None:
    assert wait_until(task.poll)


def test_a_failed_server_app_is_submitted_again(script: list[Any], tmp_path: pathlib.Path) -> None:
    reports: list[str] = []
    script += [OffbeatError("unreachable"), 4, 4, None]
    task = monitor(tmp_path, reports, max_failures=3)
    finish(task)
    assert reports == [
        "could not submit the run, retrying: unreachable",
        "the server app failed at version 4 (out of memory); restarting it",
        "the server app failed at version 4 (out of memory); restarting it",
    ]
    assert cast("Any", task.link).stopped == ["1", "2"], "Flower may still list the run of a dead server app"


def test_a_run_is_given_up_after_failures_without_a_new_version(script: list[Any], tmp_path: pathlib.Path) -> None:
    reports: list[str] = []
    script += [1, 1, 2, 2, 2]
    with pytest.raises(OffbeatError, match="failed 3 times without a new version: out of memory"):
        finish(monitor(tmp_path, reports, max_failures=3))
    assert len(reports) == 4, "a new version resets the count"


def test_without_retries_the_first_failure_is_an_error(script: list[Any], tmp_path: pathlib.Path) -> None:
    script += [3, OffbeatError("unreachable")]
    with pytest.raises(OffbeatError, match=r"^out of memory$"):
        finish(monitor(tmp_path, []))
    with pytest.raises(OffbeatError, match=r"^unreachable$"):
        finish(monitor(tmp_path, []))


def test_a_run_is_given_up_when_all_clients_fail(script: list[Any], tmp_path: pathlib.Path) -> None:
    (tmp_path / "run").mkdir()
    reports: list[str] = []
    tasks = [monitor(tmp_path, reports, clients=clients) for clients in (2, None)]
    (tmp_path / "run" / "events.jsonl").write_text(
        '{"sent": 1, "client": 0}\n{"sent": 2, "client": 1}\n{"lost": 1, "reason": "crashed"}\n'
        '{"lost": 2, "reason": "crashed"}\n'
    )
    script += [None]
    with pytest.raises(OffbeatError, match="all 2 clients failed before any update arrived; client 0: crashed"):
        tasks[0].poll()
    tasks[1].poll()
    assert reports == ["client 0: crashed", "client 0: crashed", "client 1: crashed"]
