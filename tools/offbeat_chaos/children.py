"""Processes that run `offbeat`, to be killed.

They are forked from a server that has imported everything and does nothing else (Python's own `forkserver`), so one is
there in some hundredths of a second; it is a process like any other, with a session of its own.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from offbeat_chaos.faults import Fault

PATIENCE = 300.0  # seconds after which a process is taken for stuck
GONE = 10.0  # seconds in which what a dead process has started must be gone
PRELOAD = ["offbeat_chaos.inside", "offbeat.cli", "offbeat.runs.api", "offbeat.runs.config",
           "offbeat.runs.progress", "offbeat.report.tables", "pydantic.fields", "pydantic.main",
           "safetensors.torch"]  # fmt: skip


@dataclass(frozen=True)
class End:
    """How a process ended, and what it has told."""

    status: int  # negative: by this signal
    said: str  # on its terminal
    lines: list[dict[str, Any]]  # of its journal
    seconds: float
    left: list[int] = field(default_factory=list)  # processes that it has left behind

    @property
    def struck(self) -> dict[str, Any] | None:
        """Where the fault came; None when it did not."""
        return next((line for line in self.lines if "place" in line), None)

    def told(self, name: str) -> Any:
        return next((line[name] for line in self.lines if name in line), None)


def offbeat(words: Sequence[str], folder: pathlib.Path, fault: Fault | None, every: int, scratch: pathlib.Path) -> End:
    """A command with a fault, from its beginning to its end."""
    kill_after = fault.at if fault is not None and fault.kind == "clock" else None
    return _ended("command", (list(words), folder, fault, every), scratch, kill_after)


def trial(arguments: dict[str, Any], scratch: pathlib.Path) -> End:
    """A run with or without faults of its messages."""
    return _ended("trial", (arguments,), scratch, None)


def _ended(what: str, arguments: tuple[Any, ...], scratch: pathlib.Path, kill_after: float | None) -> End:
    from offbeat_chaos import inside

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    said, journal = scratch / "said.txt", scratch / "journal.jsonl"
    for file in (said, journal):
        file.unlink(missing_ok=True)
    target: Callable[..., None] = inside.command if what == "command" else inside.trial
    process = context.Process(target=target, args=(said, journal, *arguments))
    begun = time.monotonic()
    process.start()
    assert process.pid is not None
    try:
        process.join(PATIENCE if kill_after is None else kill_after)
        killed = process.exitcode is None
        if killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.join()
        lines, status = _lines(journal), process.exitcode
        assert status is not None
        if killed and kill_after is not None and status < 0:
            lines.append({"place": f"after {kill_after:.2f} s"})
        seconds, left = time.monotonic() - begun, _left(process.pid)
    finally:
        _end(process.pid)
        process.join()
        process.close()
    return End(status, said.read_text(encoding="utf-8") if said.exists() else "", lines, seconds, left)


def _lines(journal: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []


def _end(session: int) -> None:
    """Whoever is left of a process's session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)


def _left(session: int) -> list[int]:
    """Processes of the session that do not end by themselves."""
    end = time.monotonic() + GONE
    while (alive := _members(session)) and time.monotonic() < end:
        time.sleep(0.01)
    return alive


def _members(session: int) -> list[int]:
    if sys.platform != "linux":
        return []
    found = []
    for place in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            state, _, _, of = (place / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found.append(int(place.name))
    return found
