"""One run of the server app, followed from another process through its run folder and Flower's status."""

from __future__ import annotations

import collections
import contextlib
import enum
import json
import os
import pathlib
import signal
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from offbeat.deploy.flower_cli import FINISHED, STATUS_SECONDS, Link
from offbeat.errors import OffbeatError
from offbeat.flower import log, progress
from offbeat.runs.folder import in_use, is_finished, read_status
from offbeat.runs.result import ProgressSnapshot

UNLOCKED_SECONDS = 2.0  # a run folder that no process has locked for this long belongs to a dead server app
END_SECONDS = 30.0  # limit for a server app to write its checkpoint and end
MAX_LINES = 10_000  # of an event log that are remembered; a resumed run drops only those since its last version


class State(enum.Enum):
    """State of a submitted run."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True)
class RunRequest:
    """A run to submit: an experiment and its run folder."""

    experiment: str
    """The complete TOML."""
    out: pathlib.Path
    """The run folder."""
    data_dir: pathlib.Path | None = None
    modules: pathlib.Path | None = None
    """Folder of user modules."""
    min_nodes: int | None = None
    """Nodes to wait for; None: as many as train at the same time."""
    track: Sequence[str] = ()
    """Trackers by name, with absolute paths."""


class Submission:
    """One server app, from its submission to its end.

    Args:
        link: The SuperLink that runs it.
        request: The run.
    """

    def __init__(self, link: Link, request: RunRequest) -> None:
        self.link, self.out, self.error = link, request.out, ""
        progress.delete(request.out)
        paths = {"out": request.out, "data-dir": request.data_dir, "modules": request.modules}
        config = {name: str(path.resolve()) for name, path in paths.items() if path is not None}
        config |= {"experiment": json.dumps(request.experiment), "track": json.dumps(list(request.track))}
        self.run = link.submit({**config, "min-nodes": request.min_nodes or 0})
        self._queried_at = time.monotonic()
        self._unlocked_at: float | None = None  # since when no process has locked the folder

    @property
    def snapshot(self) -> ProgressSnapshot | None:
        """The progress of the run; None before its first report."""
        found = progress.read(self.out)
        return found[0] if found else None

    def poll(self) -> State:
        """Return the state of the run; if it has failed, `error` is the reason."""
        if progress.read(self.out) is None:
            return self._query_status()
        if in_use(self.out):
            self._unlocked_at = None
            return State.RUNNING
        status = read_status(self.out)
        if status["state"] == "finished":
            return State.FINISHED
        now = time.monotonic()
        self._unlocked_at = self._unlocked_at or now
        # The server app may be about to write its status.
        if now - self._unlocked_at < UNLOCKED_SECONDS or is_finished(self.out):
            return State.RUNNING
        self.error = status.get("error") or "the server app died without an error message; see superexec.log"
        return State.FAILED

    def interrupt(self, group: int) -> None:
        """Let the server app write a checkpoint and end.

        Args:
            group: Process group of the server app. A process of another group has reused its id.
        """
        found = progress.read(self.out)
        if found is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(found[1]) == group:
                os.kill(found[1], signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        while in_use(self.out) and time.monotonic() < deadline:
            time.sleep(0.1)

    def _query_status(self) -> State:
        """Ask Flower about a run that has not reported any progress."""
        if time.monotonic() - self._queried_at < STATUS_SECONDS:
            return State.STARTING
        try:
            status, details = self.link.status(self.run)
        except OffbeatError:  # the SuperLink may be restarting
            return State.STARTING
        finally:
            self._queried_at = time.monotonic()
        if not status.startswith(FINISHED) or progress.read(self.out) is not None:
            return State.STARTING
        self.error = details.removeprefix("ServerApp failed with exception: ") or f"Flower reports the run as {status}"
        return State.FAILED


@dataclass
class LossMonitor:
    """Reads the losses that a running server app adds to its event log.

    A resumed run truncates its log to the checkpoint and may write more than it dropped between two calls, so the size
    of the log does not show this. The monitor therefore remembers checksums of the lines that it has read.
    """

    folder: pathlib.Path
    """The run folder."""
    arrived: int = 0
    """Updates that have arrived since the monitor was created."""
    failed_clients: set[int] = field(default_factory=set)
    """Clients that have lost a job since then."""
    _client_of: dict[int, int] = field(default_factory=dict)
    _lines: collections.deque[tuple[int, int, int]] = field(default_factory=lambda: collections.deque(maxlen=MAX_LINES))
    """Start, end and checksum of the latest lines."""

    def __post_init__(self) -> None:
        self.poll()
        self.arrived, self.failed_clients = 0, set()

    def poll(self) -> list[str]:
        """Return one message for each loss since the last call."""
        messages = []
        for event in map(json.loads, self._new_lines()):
            if "sent" in event:
                self._client_of[event["sent"]] = event["client"]
            elif "arrived" in event:
                self.arrived += 1
            elif "lost" in event:
                client = self._client_of.get(event["lost"], -1)
                self.failed_clients.add(client)
                messages.append(f"client {client}: {event['reason']}" if client >= 0 else event["reason"])
        return messages

    def _new_lines(self) -> list[bytes]:
        """Return the complete lines that were added since the last call."""
        try:
            file = (self.folder / log.EVENTS).open("rb")
        except FileNotFoundError:
            return []
        with file:
            start = self._last_known(file)
            file.seek(start)
            lines = [line for line in file if line.endswith(b"\n")]
        for line in lines:
            self._lines.append((start, start + len(line), zlib.crc32(line)))
            start += len(line)
        return lines

    def _last_known(self, file: BinaryIO) -> int:
        """Forget lines that are no longer in the log and return the end of the last one that is."""
        while self._lines:
            start, end, checksum = self._lines[-1]
            file.seek(start)
            if zlib.crc32(file.read(end - start)) == checksum:
                return end
            self._lines.pop()
        return 0
