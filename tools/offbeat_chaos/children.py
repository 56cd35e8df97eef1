"""Child processes that run `offbeat` and get killed.

They are forked from a server that has imported everything and does nothing else (Python's `forkserver`), so a child
starts within some hundredths of a second. Each is an ordinary process in a session of its own.
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

STUCK_SECONDS = 300.0  # after which a process counts as stuck
LINGER_SECONDS = 10.0  # within which the children of a dead process must end
PRELOAD = ["offbeat_chaos.inside", "offbeat.cli", "offbeat.runs.api", "offbeat.runs.config",
           "offbeat.runs.progress", "offbeat.report.tables", "pydantic.fields", "pydantic.main",
           "safetensors.torch"]  # fmt: skip


@dataclass(frozen=True)
class ProcessResult:
    """How a process ended and what it reported."""

    status: int
    """Exit status; negative for a signal."""
    output: str
    """What the process printed."""
    notes: list[dict[str, Any]]
    """Lines of the journal."""
    seconds: float
    left_behind: list[int] = field(default_factory=list)
    """Processes of its session that did not end."""

    @property
    def fault_place(self) -> dict[str, Any] | None:
        """Where the fault struck, or None if it did not."""
        return next((note for note in self.notes if "place" in note), None)

    def note(self, name: str) -> Any:
        """Return the first note with the given name, or None."""
        return next((note[name] for note in self.notes if name in note), None)


def run_command(
    words: Sequence[str], folder: pathlib.Path, fault: Fault | None, every: int, scratch: pathlib.Path
) -> ProcessResult:
    """Run an `offbeat` command with a fault until it ends.

    Args:
        words: Arguments of the command.
        folder: The run folder that the fault concerns.
        fault: The fault, if any.
        every: Turns between two checkpoints.
        scratch: Folder for output and journal.
    """
    kill_after = fault.at if fault is not None and fault.kind == "clock" else None
    return _run("command", (list(words), folder, fault, every), scratch, kill_after)


def run_trial(arguments: dict[str, Any], scratch: pathlib.Path) -> ProcessResult:
    """Run a trial with or without message faults until it ends.

    Args:
        arguments: Arguments of `trials.trial`.
        scratch: Folder for output and journal.
    """
    return _run("trial", (arguments,), scratch, None)


def _run(what: str, arguments: tuple[Any, ...], scratch: pathlib.Path, kill_after: float | None) -> ProcessResult:
    from offbeat_chaos import inside

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    output, journal = scratch / "output.txt", scratch / "journal.jsonl"
    for file in (output, journal):
        file.unlink(missing_ok=True)
    target: Callable[..., None] = inside.command if what == "command" else inside.trial
    process = context.Process(target=target, args=(output, journal, *arguments))
    started = time.monotonic()
    process.start()
    assert process.pid is not None
    try:
        process.join(STUCK_SECONDS if kill_after is None else kill_after)
        killed = process.exitcode is None
        if killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.join()
        notes, status = _read_notes(journal), process.exitcode
        assert status is not None
        if killed and kill_after is not None and status < 0:
            notes.append({"place": f"after {kill_after:.2f} s"})
        seconds, left_behind = time.monotonic() - started, _wait_for_session(process.pid)
    finally:
        _kill_session(process.pid)
        process.join()
        process.close()
    printed = output.read_text(encoding="utf-8") if output.exists() else ""
    return ProcessResult(status, printed, notes, seconds, left_behind)


def _read_notes(journal: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []


def _kill_session(session: int) -> None:
    """Kill what is left of a process's session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)


def _wait_for_session(session: int) -> list[int]:
    """Return the processes of the session that do not end on their own."""
    deadline = time.monotonic() + LINGER_SECONDS
    while (alive := _members(session)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return alive


def _members(session: int) -> list[int]:
    """Return the living processes of a session; none where there is no /proc."""
    if sys.platform != "linux":
        return []
    found = []
    for place in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            state, _, _, of = (place / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found.append(int(place.name))
    return found
