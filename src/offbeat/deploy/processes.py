"""Child programs: each runs with its descendants in its own process group, which is ended as a whole."""

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

GRACE_SECONDS = 8.0  # between SIGTERM and SIGKILL
MIN_DELAY, MAX_DELAY = 2.0, 60.0  # seconds before a restart; the delay doubles while a program keeps exiting early
STABLE_SECONDS = 60.0  # after which a program counts as stable and its delay is reset
TAIL_LINES = 60  # lines of a log that are searched for an error
_PR_SET_PDEATHSIG = 1
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_NOISE = re.compile(r"\bINFO\b|^For more information|^\s*$")


@dataclass
class Program:
    """A command that is run in the background and restarted when it exits."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    log: pathlib.Path
    """File to which the output is appended."""
    restart_delay: Callable[[str], float] | None = None
    """Returns the seconds before a restart, given the output since the last start. None: an increasing delay."""
    restart: bool = True
    """Whether to restart the program when it exits."""
    starts: int = 0
    """How often the program was started."""
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _started_at: float = 0.0
    _log_start: int = 0  # offset in the log of the output since the last start
    _restart_at: float | None = None
    _delay: float = MIN_DELAY

    def start(self) -> None:
        """Start the program in a new process group."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self.command, env=dict(self.env), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True, preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )  # fmt: skip
        self.starts, self._started_at, self._restart_at = self.starts + 1, time.monotonic(), None

    @property
    def pid(self) -> int:
        """The id of the process, which is also that of its group."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> str:
        """How the program exited: the name of a signal, or its status."""
        code = self._process.poll() if self._process is not None else None
        return signal.Signals(-code).name if code is not None and code < 0 else f"status {code}"

    @property
    def killed(self) -> bool:
        """Whether the program was ended by a signal."""
        return self._process is not None and (self._process.poll() or 0) < 0

    @property
    def seconds_to_restart(self) -> float:
        """Seconds until a program that has exited is restarted."""
        return max(0.0, self._restart_at - time.monotonic()) if self._restart_at is not None else 0.0

    def poll(self) -> bool:
        """Restart the program when its restart is due.

        Returns:
            Whether the program has exited since the last call.
        """
        if self.running:
            return False
        now = time.monotonic()
        if self._restart_at is None:
            self.send_signal(signal.SIGKILL)  # to the children that it left behind
            self._delay = MIN_DELAY if now - self._started_at > STABLE_SECONDS else min(2 * self._delay, MAX_DELAY)
            self._restart_at = now + (self.restart_delay(self._output()) if self.restart_delay else self._delay)
            return True
        if self.restart and now >= self._restart_at:
            self.start()
        return False

    def send_signal(self, number: int) -> None:
        """Send a signal to the whole process group."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    @property
    def group_alive(self) -> bool:
        """Whether any process of the group is alive."""
        if self._process is None:
            return False
        self._process.poll()
        try:
            os.killpg(self._process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def log_excerpt(self, lines: int = 8) -> str:
        """Return the last error in the output since the last start, or the last lines if there is no error."""
        tail = [line for line in self._output().splitlines()[-TAIL_LINES:] if not _NOISE.search(line)]
        errors = [index for index, line in enumerate(tail) if "ERROR" in line]
        return "\n".join(tail[errors[-1] :][:lines] if errors else tail[-lines:])

    def _output(self) -> str:
        """Return the output since the last start, without colors."""
        if not self.log.is_file():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return _COLOR.sub("", log.read().decode("utf-8", errors="replace"))


class Programs:
    """A context manager for programs: on exit, all of them and their descendants are ended."""

    def __init__(self) -> None:
        self.all: list[Program] = []

    def start(self, program: Program) -> Program:
        """Start a program and add it."""
        self.all.append(program)
        program.start()
        return program

    def poll(self) -> list[Program]:
        """Restart programs whose restart is due and return those that have exited since the last call."""
        return [program for program in self.all if program.poll()]

    def __enter__(self) -> Programs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Terminate all programs, and kill them after a grace period or a second Ctrl-C."""
        try:
            self._signal_all(signal.SIGTERM)
        finally:
            self._signal_all(signal.SIGKILL)
            self.all.clear()

    def _signal_all(self, number: int) -> None:
        """Signal all groups, in reverse order of their start, and wait for their end."""
        for program in reversed(self.all):
            program.send_signal(number)
        deadline = time.monotonic() + GRACE_SECONDS
        while any(program.group_alive for program in self.all) and time.monotonic() < deadline:
            time.sleep(0.05)


def wait_for_port(program: Program, host: str, port: int, seconds: float) -> None:
    """Wait until a program accepts connections.

    Raises:
        OffbeatError: The program exited or did not listen in time.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and program.running:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
            return
        time.sleep(0.1)
    problem = (
        f"does not listen on port {port} after {seconds:g} s" if program.running else f"exited ({program.exit_status})"
    )
    raise OffbeatError(f"{program.name} {problem}; end of {program.log.name}:\n{program.log_excerpt()}")


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that are currently unused."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _end_with_parent() -> None:
    """Ask the kernel to end this process when its parent dies, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
