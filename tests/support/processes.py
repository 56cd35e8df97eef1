"""Signals and process states."""

from __future__ import annotations

import os
import pathlib
import resource
import signal
import time
from collections.abc import Callable

from offbeat.runs.result import ProgressSnapshot, Watch


def interrupt_after(version: int) -> Watch:
    """Return a watch that sends this process one real SIGINT, as Ctrl-C does, when the run reaches `version`."""
    sent: list[bool] = []

    def watch(snapshot: ProgressSnapshot) -> None:
        if snapshot.counters.version >= version and not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    return watch


def wait_until(condition: Callable[[], object]) -> bool:
    """Wait until a condition holds and return whether it does.

    The deadline of five minutes only ends a test that would hang; how busy the machine is does not matter.
    """
    deadline = time.monotonic() + 300
    while not (holds := bool(condition())) and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds


def gone(pid: int) -> bool:
    """Wait for a process to end and return whether it has."""
    return wait_until(lambda: not running(pid))


def resident_bytes() -> int:
    """Return the bytes of this process that are in RAM now."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def running(pid: int) -> bool:
    """Return whether a process is alive; a zombie (state Z) is not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
