"""Faults that a child process injects into itself, at exactly the n-th turn or file operation.

Only processes that this tool started are changed, and only in memory: the functions with which Python writes files
(`io.open`, `os.replace` …) count their calls on the run folder, and kill the process or fail when the fault is due.
"""

from __future__ import annotations

import builtins
import dataclasses
import errno
import io
import json
import os
import pathlib
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

from offbeat.runs.hooks import RunHooks, install_hooks
from offbeat.runs.run import Run
from offbeat_chaos.faults import Fault
from offbeat_chaos.observer import RunObserver

FINAL_OPERATIONS = 16  # approximate number of file operations at the end of a run
CHECKPOINT_OPERATIONS = 8  # file operations of a checkpoint
PATCHED = ("replace", "unlink", "mkdir", "rmdir", "fsync", "posix_fallocate")  # functions of `os`


class Saboteur(RunHooks):
    """Counts the turns and file operations of a run and injects a fault.

    Args:
        folder: The run folder.
        journal: File for notes that the parent process reads.
        fault: The fault, if any.
        every: Turns between two checkpoints.
    """

    def __init__(self, folder: pathlib.Path, journal: pathlib.Path, fault: Fault | None, every: int) -> None:
        self.folder, self.fault, self.every = str(pathlib.Path(folder).absolute()), fault, every
        self.counts: Counter[str] = Counter()
        self.failing = 0  # errno of every write to the folder, once a full disk has struck
        self._until_second_signal = -1  # operations on a checkpoint
        self._observers: dict[int, RunObserver] = {}
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def install(self) -> None:
        """Patch this process for the rest of its life."""
        install_hooks(self)
        io.open = builtins.open = self._patched_open(io.open)
        for name in PATCHED:
            if hasattr(os, name):
                setattr(os, name, self._patched(name, getattr(os, name)))

    def note(self, **line: Any) -> None:
        """Write a line for the parent process."""
        os.write(self._journal, (json.dumps(line) + "\n").encode())

    # Runs ------------------------------------------------------------------------------------------------------

    def on_begin(self, run: Run) -> None:
        """Start an observer for the run."""
        self._observers[id(run)] = RunObserver(run, lambda job: self.note(twice=job))

    def before_turn(self, run: Run) -> None:
        """Count the turn, and send this process a signal if the fault is due."""
        self.counts["turn"] += 1
        fault = self.fault
        if fault is not None and fault.kind in ("turn", "twice") and self.counts["turn"] == fault.at:
            self.note(place="a turn", turn=self.counts["turn"], version=run.counters.version)
            self._until_second_signal = int(fault.part * CHECKPOINT_OPERATIONS) if fault.kind == "twice" else -1
            os.kill(os.getpid(), fault.signal)

    def checkpoint_due(self, run: Run, due: bool) -> bool:
        """Write a checkpoint after a fixed number of turns, not seconds, so that the n-th write is reproducible."""
        return self.counts["turn"] % self.every == 0

    def before_finish(self, run: Run) -> None:
        """Let a fault that has not struck yet strike among the last files."""
        fault = self.fault
        if fault is None or fault.kind == "clock" or self.counts[_counter(fault.kind)] >= fault.at:
            return
        kind = fault.kind if fault.kind in ("full disk", "read-only") else "file"
        at = self.counts[kind] + 1 + int(fault.part * FINAL_OPERATIONS)
        self.fault = dataclasses.replace(fault, kind=kind, at=at, signal=signal.SIGKILL)

    def on_finish(self, run: Run) -> None:
        """Note the observer's ledger."""
        self.note(finished=self._observers[id(run)].ledger(), counts=dict(self.counts))

    # Files -----------------------------------------------------------------------------------------------------

    def before_operation(self, what: str, path: str) -> bool:
        """Count an operation on a file of the run folder and inject the fault if it is due.

        Args:
            what: Name of the operation.
            path: The file.

        Returns:
            Whether this is the write that reaches the file only in part.
        """
        kind = "checkpoint" if f"{os.sep}checkpoint" in path[len(self.folder) :] else "file"
        kinds = {kind, "read-only"} | ({"full disk"} if what == "write" else set())
        self.counts.update(kinds)
        fault = self.fault
        if fault is not None and kind == "checkpoint":
            if self._until_second_signal == 0:
                os.kill(os.getpid(), fault.signal)
            self._until_second_signal -= 1
        if fault is None or fault.kind not in kinds:
            return False
        if self.counts[fault.kind] < fault.at:
            return False
        first = self.counts[fault.kind] == fault.at
        if first:
            where = os.path.relpath(path, self.folder)
            self.note(place=f"{what} {where}", turn=self.counts["turn"], kind=fault.kind)
        if fault.kind == "read-only":
            self.fail(errno.EROFS, path)
        if fault.kind == "full disk":
            self.failing = errno.ENOSPC
        elif what != "write" and first:
            die()
        return first

    def fail(self, number: int, path: str) -> NoReturn:
        """Raise the OSError that the operating system would raise."""
        raise OSError(number, os.strerror(number), path)

    def path_inside(self, path: Any) -> str | None:
        """Return the absolute path if it lies in the run folder, else None."""
        if isinstance(path, int) or not isinstance(path, str | os.PathLike):
            return None
        text = str(pathlib.Path(path).absolute())
        return text if text == self.folder or text.startswith(self.folder + os.sep) else None

    def _patched_open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def patched(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
            path = self.path_inside(file)
            if path is None or not set(mode) & set("wax+"):
                return original(file, mode, *more, **named)
            self.before_operation("open", path)
            raw = _File(path, mode.replace("b", "").replace("t", ""), self)
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding="utf-8")

        return patched

    def _patched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def patched(target: Any, *more: Any, **named: Any) -> Any:
            path = _path_of(target) if isinstance(target, int) else target
            if path is not None and named.get("dir_fd") is None and (path := self.path_inside(path)):
                self.before_operation("write" if name == "posix_fallocate" else name, path)
                if name == "posix_fallocate" and self.failing:
                    self.fail(self.failing, path)
            return original(target, *more, **named)

        return patched


class _File(io.FileIO):
    """A file of the run folder whose writes pass through the saboteur."""

    def __init__(self, path: str, mode: str, saboteur: Saboteur) -> None:
        super().__init__(path, mode)
        self._path, self._saboteur = path, saboteur

    def write(self, data: Any) -> int:
        saboteur = self._saboteur
        if saboteur.before_operation("write", self._path):
            fault = saboteur.fault
            assert fault is not None
            part = memoryview(data)[: int(fault.part * len(data))]
            written = super().write(part)
            if not saboteur.failing:
                die()
            if written:  # as on a real disk: this write is short, the next one fails
                return written
        if saboteur.failing:
            saboteur.fail(saboteur.failing, self._path)
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        self._saboteur.before_operation("truncate", self._path)
        return super().truncate(size)


def _counter(kind: str) -> str:
    """Return the name of the counter that a kind of fault refers to."""
    return "turn" if kind == "twice" else kind


def die() -> NoReturn:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def _path_of(descriptor: int) -> str | None:
    """Return the path of an open file, or None if it has none."""
    try:
        return str(pathlib.Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return None
