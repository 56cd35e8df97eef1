"""Take a run to its end: submit it, report its losses and progress, and resubmit it when its server app fails."""

from __future__ import annotations

import contextlib
import json

from offbeat.deploy.flower_cli import Link
from offbeat.deploy.processes import Program
from offbeat.deploy.submission import LossMonitor, RunRequest, State, Submission
from offbeat.deploy.supervisor import RepeatLimiter, Report
from offbeat.errors import OffbeatError
from offbeat.files import write_json
from offbeat.runs.result import Watch


class RunMonitor:
    """The task of a supervisor whose programs run one experiment.

    A run that is submitted again resumes from the checkpoint in its run folder.

    Args:
        link: The SuperLink that runs it.
        request: The run.
        superexec: The program below which the server app runs.
        watch: Receives the progress.
        report: Receives messages for the operator.
        max_failures: Give the run up after this many failures of the server app without a new version in between. With
            1, nothing is submitted again.
        clients: Give the run up when this many clients have failed before any update arrives. None: never.
    """

    def __init__(
        self,
        link: Link,
        request: RunRequest,
        superexec: Program,
        watch: Watch,
        report: Report,
        *,
        max_failures: int = 1,
        clients: int | None = None,
    ) -> None:
        self.link, self.request, self.superexec = link, request, superexec
        self.watch, self.report, self._report_limited = watch, report, RepeatLimiter(report)
        self.max_failures, self.clients = max_failures, clients
        self.submission: Submission | None = None
        self._losses = LossMonitor(request.out)
        self._failures, self._version = 0, -1

    def poll(self) -> bool:
        """Report what has happened since the last call and return whether the run is finished.

        Raises:
            OffbeatError: The run is given up.
        """
        for message in self._losses.poll():
            self._report_limited(message)
            if not self._losses.arrived and len(self._losses.failed_clients) == self.clients:
                raise OffbeatError(f"all {self.clients} clients failed before any update arrived; {message}")
        if self.submission is None:
            self.submission = self._submit()
            return False
        state = self.submission.poll()
        if (snapshot := self.submission.snapshot) is not None:
            self.watch(snapshot)
        if state is State.FAILED:
            self._handle_failure(self.submission)
        return state is State.FINISHED

    def interrupt(self) -> None:
        """Let the server app write a checkpoint and end."""
        if self.submission is not None:
            self.submission.interrupt(self.superexec.pid)

    def _submit(self) -> Submission | None:
        """Submit a new run after stopping the previous one, whose server app is dead; None if that must be retried."""
        file = self.link.home / "run.json"
        try:
            if file.is_file():
                with contextlib.suppress(OffbeatError):  # Flower may have ended it already
                    self.link.stop(json.loads(file.read_text(encoding="utf-8"))["run"])
            submission = Submission(self.link, self.request)
        except OffbeatError as error:
            if self.max_failures == 1:
                raise
            self._report_limited(f"could not submit the run, retrying: {error}")
            return None
        write_json(file, {"run": submission.run})
        return submission

    def _handle_failure(self, submission: Submission) -> None:
        """Forget the submission, so that the run is submitted again, or give the run up."""
        snapshot, error = submission.snapshot, submission.error
        if self.max_failures == 1:
            raise OffbeatError(error)
        version = snapshot.counters.version if snapshot else -1
        self._failures = 1 if version > self._version else self._failures + 1
        self._version, self.submission = max(version, self._version), None
        if self._failures >= self.max_failures:
            raise OffbeatError(f"the server app failed {self.max_failures} times without a new version: {error}")
        self.report(f"the server app failed at version {max(version, 0)} ({error}); restarting it")
