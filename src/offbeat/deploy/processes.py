"""Programs that run beside this one: each with its children in a process group of its own, ended as a whole."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from offbeat.errors import OffbeatError

GRACE = 8.0  # seconds between SIGTERM and SIGKILL
SHORTEST, LONGEST = 2.0, 60.0  # seconds before a program is started again, doubled while it keeps dying young
STEADY = 60.0  # seconds after which it counts as well
TAIL = 60  # lines of a log in which an error is looked for
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CHATTER = re.compile(r"\bINFO\b|^For more information|^\s*$")


@dataclass
class Program:
    """A command that is kept running, or is run once.  What it prints goes to the end of `log`."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    log: pathlib.Path
    pause: Callable[[str], float] | None = None  # before it is started again, by what it has printed in this life
    restart: bool = True
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _since: float = 0.0
    _begin: int = 0  # of this life in the log
    _due: float | None = None
    _wait: float = SHORTEST

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._begin = log.tell()
            self._process = subprocess.Popen(
                self.command, env=dict(self.env), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True, preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )  # fmt: skip
        self.starts, self._since, self._due = self.starts + 1, time.monotonic(), None

    @property
    def pid(self) -> int:
        """Of the program and of its group."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def look(self) -> bool:
        """Start it again when it is time; True when it has just been found dead."""
        if self.running:
            return False
        now = time.monotonic()
        if self._due is None:
            self.signal(signal.SIGKILL)  # its orphans
            self._wait = SHORTEST if now - self._since > STEADY else min(2 * self._wait, LONGEST)
            self._due = now + (self.pause(self._text(self._begin)) if self.pause else self._wait)
            return True
        if self.restart and now >= self._due:
            self.start()
        return False

    def signal(self, number: int) -> None:
        """To the whole group."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    @property
    def group_alive(self) -> bool:
        if self._process is None:
            return False
        self._process.poll()
        try:
            os.killpg(self._process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def last_words(self, lines: int = 8) -> str:
        """The end of its log, from the last error on where there is one."""
        said = [line for line in self._text(0).splitlines()[-TAIL:] if not _CHATTER.search(line)]
        errors = [place for place, line in enumerate(said) if "ERROR" in line]
        return "\n".join(said[errors[-1] :][:lines] if errors else said[-lines:])

    def _text(self, begin: int) -> str:
        """Its log from there on."""
        raw = self.log.read_bytes()[begin:] if self.log.is_file() else b""
        return _COLOUR.sub("", raw.decode("utf-8", errors="replace"))


class Programs:
    """A context in which programs run; at its end all of them have ended, and all that they have started."""

    def __init__(self) -> None:
        self.all: list[Program] = []

    def start(self, program: Program) -> Program:
        self.all.append(program)
        program.start()
        return program

    def look(self) -> list[Program]:
        """Start again what has died; who was found dead."""
        return [program for program in self.all if program.look()]

    def __enter__(self) -> Programs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """In good order; at once when Ctrl-C is pressed once more."""
        try:
            self._signal(signal.SIGTERM)
        finally:
            self._signal(signal.SIGKILL)
            self.all.clear()

    def _signal(self, number: int) -> None:
        """To all groups, those that were started last first; wait for their end."""
        for program in reversed(self.all):
            program.signal(number)
        until = time.monotonic() + GRACE
        while any(program.group_alive for program in self.all) and time.monotonic() < until:
            time.sleep(0.05)


def await_port(program: Program, host: str, port: int, seconds: float) -> None:
    """Wait until somebody listens."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and program.running:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
            return
        time.sleep(0.1)
    what = f"does not listen on port {port} after {seconds:g} s" if program.running else "has ended"
    raise OffbeatError(f"{program.name} {what}; its last words:\n{program.last_words()}")


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody uses at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _die_with_parent() -> None:
    """Whoever kills this process with SIGKILL does not leave its children behind."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGTERM)
