"""The supervisor, with small programs."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from offbeat.deploy import processes
from offbeat.deploy.processes import Program, Programs, await_port, free_ports
from offbeat.errors import OffbeatError


def python(tmp_path: pathlib.Path, code: str, **more: Any) -> Program:
    return Program("it", [sys.executable, "-c", code], os.environ, tmp_path / "it.log", **more)


def until(true: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_program_ends_with_all_that_it_has_started(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.5)
    with Programs() as programs:
        it = programs.start(python(tmp_path, STUBBORN))
        until(lambda: it.log.read_text().endswith("\n"))
        child, parent = int(it.log.read_text()), it.pid
        assert not gone(child)
    until(lambda: gone(child))
    assert gone(parent)


def test_what_dies_is_started_again_and_its_orphans_are_ended(tmp_path: pathlib.Path) -> None:
    with Programs() as programs:
        heard: list[str] = []

        def pause(said: str) -> float:
            heard.append(said)
            return 0.1

        it = python(tmp_path, STUBBORN, pause=pause)
        it.log.write_text("of a life before\n")
        programs.start(it)
        until(lambda: it.log.read_text().count("\n") == 2)
        child = int(it.log.read_text().splitlines()[1])
        os.kill(it.pid, signal.SIGKILL)
        until(lambda: not it.running)
        assert programs.look() == [it]
        assert programs.look() == [], "it is told once"
        assert heard == [f"{child}\n"]
        until(lambda: gone(child))
        until(lambda: programs.look() or it.running)
        assert it.starts == 2


def test_a_program_that_keeps_dying_is_started_more_and_more_rarely(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "SHORTEST", 0.05)
    with Programs() as programs:
        it = programs.start(python(tmp_path, "raise SystemExit(1)"))
        it._wait = 0.05
        pauses = []
        for _ in range(3):
            until(programs.look)
            began, starts = time.monotonic(), it.starts
            until(lambda: programs.look() or it.starts > starts)  # noqa: B023
            pauses.append(time.monotonic() - began)
        assert pauses[0] >= 0.1
        assert pauses[2] >= 0.4


def test_the_last_words_are_those_of_the_last_error(tmp_path: pathlib.Path) -> None:
    it = python(tmp_path, "")
    it.log.write_text("INFO: x\n\x1b[91mERROR \x1b[0m: no key\nrefused\n\nFor more information, visit\nINFO: shut\n")
    assert it.last_words() == "ERROR : no key\nrefused"


def test_who_does_not_listen_is_quoted(tmp_path: pathlib.Path) -> None:
    with Programs() as programs:
        it = programs.start(python(tmp_path, "raise SystemExit('no room')"))
        with pytest.raises(OffbeatError, match="it has ended; its last words:\nno room"):
            await_port(it, "127.0.0.1", free_ports(1)[0], 30)
