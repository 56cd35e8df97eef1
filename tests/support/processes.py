"""Signals and process states."""

from __future__ import annotations

import os
import pathlib
import signal
import time

from offbeat.runs.result import ProgressSnapshot, Watch


def interrupt_after(version: int) -> Watch:
    """Return a watch that sends this process one real SIGINT, as Ctrl-C does, when the run reaches `version`."""
    sent: list[bool] = []

    def watch(snapshot: ProgressSnapshot) -> None:
        if snapshot.counters.version >= version and not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    return watch


def gone(pid: int) -> bool:
    """Wait up to ten seconds for a process to end and return whether it has."""
    deadline = time.monotonic() + 10
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not running(pid)


def running(pid: int) -> bool:
    """Return whether a process is alive; a zombie (state Z) is not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
