"""Tests of offbeat.deploy.processes with small programs."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.processes import gone, running, wait_until

from offbeat.deploy import processes
from offbeat.deploy.processes import Program, Programs, free_ports, wait_for_port
from offbeat.errors import OffbeatError

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def python(tmp_path: pathlib.Path, code: str, **options: Any) -> Program:
    return Program("program", [sys.executable, "-c", code], os.environ, tmp_path / "program.log", **options)


def until(condition: Callable[[], Any]) -> None:
    assert wait_until(condition)


def test_a_program_ends_with_its_children(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.5)
    with Programs() as programs:
        program = programs.start(python(tmp_path, STUBBORN))
        until(lambda: program.log.read_text().endswith("\n"))
        child, parent = int(program.log.read_text()), program.pid
        assert running(child)
    assert gone(child)
    assert gone(parent)


def test_a_program_is_restarted_and_its_children_are_killed(tmp_path: pathlib.Path) -> None:
    with Programs() as programs:
        outputs: list[str] = []

        def restart_delay(output: str) -> float:
            outputs.append(output)
            return 0.1

        program = python(tmp_path, STUBBORN, restart_delay=restart_delay)
        program.log.write_text("from an earlier start\n")
        programs.start(program)
        until(lambda: program.log.read_text().count("\n") == 2)
        child = int(program.log.read_text().splitlines()[1])
        os.kill(program.pid, signal.SIGKILL)
        until(lambda: not program.running)
        assert (program.killed, program.exit_status) == (True, "SIGKILL")
        assert programs.poll() == [program]
        assert 0.0 < program.seconds_to_restart <= 0.1
        assert programs.poll() == [], "an exit is reported once"
        assert outputs == [f"{child}\n"], "without the output of earlier starts"
        assert gone(child)
        until(lambda: programs.poll() or program.running)
        assert program.starts == 2


def test_the_restart_delay_grows_while_a_program_keeps_exiting(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MIN_DELAY", 0.05)
    with Programs() as programs:
        program = programs.start(python(tmp_path, "raise SystemExit(1)"))
        program._delay = 0.05
        delays = []
        for _ in range(3):
            until(programs.poll)
            exited, starts = time.monotonic(), program.starts
            until(lambda: programs.poll() or program.starts > starts)  # noqa: B023
            delays.append(time.monotonic() - exited)
        assert delays[0] >= 0.1
        assert delays[2] >= 0.4


def test_the_log_excerpt_starts_at_the_last_error(tmp_path: pathlib.Path) -> None:
    program = python(tmp_path, "")
    program.log.write_text(
        "INFO: x\n\x1b[91mERROR \x1b[0m: no key\nrefused\n\nFor more information, visit\nINFO: shut\n"
    )
    assert program.log_excerpt() == "ERROR : no key\nrefused"


def test_a_program_that_does_not_listen_is_reported_with_its_log(tmp_path: pathlib.Path) -> None:
    with Programs() as programs:
        program = programs.start(python(tmp_path, "raise SystemExit('disk full')"))
        with pytest.raises(OffbeatError, match=r"program exited \(status 1\); end of program\.log:\ndisk full"):
            wait_for_port(program, "127.0.0.1", free_ports(1)[0], 30)
