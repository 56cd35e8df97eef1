"""The supervision loop of every deployment command: keep programs running until their task is finished."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from offbeat.deploy.processes import Program, Programs
from offbeat.errors import OffbeatError

POLL_SECONDS = 0.5
MAX_REPEATS = 3

Report = Callable[[str], None]
"""Shows a message to the operator."""


class RepeatLimiter:
    """Pass each distinct message on a few times only.

    Args:
        report: Receives the messages.
    """

    def __init__(self, report: Report) -> None:
        self.report, self.counts = report, dict[str, int]()

    def __call__(self, message: str) -> None:
        """Report a message, unless it was reported often enough."""
        self.counts[message] = self.counts.get(message, 0) + 1
        if self.counts[message] <= MAX_REPEATS:
            self.report(message)


class Task(Protocol):
    """What the supervised programs work on."""

    def poll(self) -> bool:
        """Follow the task and return whether it is finished; raise `OffbeatError` to give it up."""

    def interrupt(self) -> None:
        """End the task early, so that it can be resumed."""


class Supervisor:
    """Restart programs that exit, and follow their task, until it is finished or interrupted.

    A program with `restart=False` is one that the deployment cannot lose: its exit ends the supervision with an error.

    Args:
        programs: The programs, each with its own restart delay.
        interrupted: Ends the supervision when set.
        report: Receives messages for the operator.
        poll_seconds: Interval of the loop.
    """

    def __init__(
        self, programs: Programs, interrupted: threading.Event, report: Report, poll_seconds: float = POLL_SECONDS
    ) -> None:
        self.programs, self.interrupted, self.report = programs, interrupted, report
        self.poll_seconds = poll_seconds

    def run(self, task: Task | None = None) -> bool:
        """Supervise until the end.

        Args:
            task: Finishes the supervision. Without a task only an interruption does.

        Returns:
            True if the task is finished, False if it was interrupted.

        Raises:
            OffbeatError: A program that is not restarted exited, or the task was given up.
        """
        while not self.interrupted.is_set():
            for program in self.programs.poll():
                self._handle_exit(program)
            if task is not None and task.poll():
                return True
            self.interrupted.wait(self.poll_seconds)
        if task is not None:
            task.interrupt()
        return False

    def _handle_exit(self, program: Program) -> None:
        # The log of a program that was killed does not say why; its last error would be misleading.
        excerpt = "" if program.killed else program.log_excerpt()
        log = f"; end of {program.log.name}:\n{excerpt}" if excerpt else f"; see {program.log.name}"
        if not program.restart:
            raise OffbeatError(f"{program.name} exited ({program.exit_status}){log}")
        delay = f"{program.seconds_to_restart:.0f} s"
        self.report(f"{program.name} exited ({program.exit_status}); restarting it in {delay}{log}")
