"""What a process does to itself, so that a fault comes at exactly the n-th turn or operation on files.

Only processes that this room has started are changed, and only in memory: the functions through which Python writes
files (`io.open`, `os.replace` …) count what they do within the run folder, and die or fail when it is time.
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

from offbeat.runs.run import Run, RunHooks, install_hooks
from offbeat_chaos.faults import Fault
from offbeat_chaos.observer import RunObserver

LAST = 16  # operations on files, or somewhat more, when a run is finished
OPERATIONS = 8  # on files, before the end of a checkpoint
CHANGES = ("replace", "unlink", "mkdir", "rmdir", "fsync", "posix_fallocate")  # of `os`


class Saboteur(RunHooks):
    """Counts what a run does, and lets its fault come."""

    def __init__(self, folder: pathlib.Path, journal: pathlib.Path, fault: Fault | None, every: int) -> None:
        self.folder, self.fault, self.every = str(pathlib.Path(folder).absolute()), fault, every
        self.counts: Counter[str] = Counter()
        self.impatient = -1  # operations on a checkpoint until a second signal
        self.failing = 0  # errno of everything that changes the folder, from the fault on
        self._observers: dict[int, RunObserver] = {}
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def install(self) -> None:
        """From now on; for the rest of this process."""
        install_hooks(self)
        io.open = builtins.open = self._opened(io.open)
        for name in CHANGES:
            if hasattr(os, name):
                setattr(os, name, self._changed(name, getattr(os, name)))

    def note(self, **line: Any) -> None:
        """A line for those who look on from outside."""
        os.write(self._journal, (json.dumps(line) + "\n").encode())

    # Runs ------------------------------------------------------------------------------------------------------

    def on_begin(self, run: Run) -> None:
        """Start an observer for the run."""
        self._observers[id(run)] = RunObserver(run, lambda twice: self.note(twice=twice))

    def before_turn(self, run: Run) -> None:
        """Count the turn, and kill this process where the fault asks for it."""
        self.counts["turn"] += 1
        fault = self.fault
        if fault is not None and fault.kind in ("turn", "twice") and self.counts["turn"] == fault.at:
            self.note(place="a turn", turn=self.counts["turn"], version=run.counters.version)
            self.impatient = int(fault.part * OPERATIONS) if fault.kind == "twice" else -1
            os.kill(os.getpid(), fault.signal)

    def checkpoint_due(self, run: Run, due: bool) -> bool:
        """Write a checkpoint after a fixed number of turns, not seconds, so that the n-th write is reproducible."""
        return self.counts["turn"] % self.every == 0

    def before_finish(self, run: Run) -> None:
        """Let a fault that has not struck yet strike among the last files."""
        self._catch_up()

    def on_finish(self, run: Run) -> None:
        """Note the observer's ledger."""
        self.note(finished=self._observers[id(run)].ledger(), counts=dict(self.counts))

    def _catch_up(self) -> None:
        """A run that ends before its fault has come meets it among the last files that it writes."""
        fault = self.fault
        if fault is None or fault.kind == "clock" or self.counts[_counted(fault.kind)] >= fault.at:
            return
        kind = fault.kind if fault.kind in ("full disk", "read-only") else "file"
        at = self.counts[kind] + 1 + int(fault.part * LAST)
        self.fault = dataclasses.replace(fault, kind=kind, at=at, signal=signal.SIGKILL)

    # Files -----------------------------------------------------------------------------------------------------

    def touched(self, what: str, path: str) -> bool:
        """Before an operation on a file of the folder; True when it is the one at which a write is torn."""
        kind = "checkpoint" if f"{os.sep}checkpoint" in path[len(self.folder) :] else "file"
        kinds = {kind, "read-only"} | ({"full disk"} if what == "write" else set())
        self.counts.update(kinds)
        fault = self.fault
        if fault is not None and kind == "checkpoint":
            if self.impatient == 0:
                os.kill(os.getpid(), fault.signal)
            self.impatient -= 1
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
        raise OSError(number, os.strerror(number), path)

    def inside(self, path: Any) -> str | None:
        """The path, if it lies in the folder."""
        if isinstance(path, int) or not isinstance(path, str | os.PathLike):
            return None
        text = str(pathlib.Path(path).absolute())
        return text if text == self.folder or text.startswith(self.folder + os.sep) else None

    def _opened(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
            path = self.inside(file)
            if path is None or not set(mode) & set("wax+"):
                return plain(file, mode, *more, **named)
            self.touched("open", path)
            raw = _File(path, mode.replace("b", "").replace("t", ""), self)
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding="utf-8")

        return opened

    def _changed(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def changed(of: Any, *more: Any, **named: Any) -> Any:
            path = _named(of) if isinstance(of, int) else of
            if path is not None and named.get("dir_fd") is None and (path := self.inside(path)):
                self.touched("write" if name == "posix_fallocate" else name, path)
                if name == "posix_fallocate" and self.failing:
                    self.fail(self.failing, path)
            return plain(of, *more, **named)

        return changed


class _File(io.FileIO):
    """A file of the run folder; what is written to it passes here, as it does on its way to the kernel."""

    def __init__(self, path: str, mode: str, saboteur: Saboteur) -> None:
        super().__init__(path, mode)
        self._path, self._saboteur = path, saboteur

    def write(self, data: Any) -> int:
        saboteur = self._saboteur
        if saboteur.touched("write", self._path):
            fault = saboteur.fault
            assert fault is not None
            part = memoryview(data)[: int(fault.part * len(data))]
            written = super().write(part)
            if not saboteur.failing:
                die()
            if written:  # as a kernel does: the next one fails
                return written
        if saboteur.failing:
            saboteur.fail(saboteur.failing, self._path)
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        self._saboteur.touched("truncate", self._path)
        return super().truncate(size)


def _counted(kind: str) -> str:
    return "turn" if kind == "twice" else kind


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def _named(descriptor: int) -> str | None:
    """The path of an open file."""
    try:
        return str(pathlib.Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return None
