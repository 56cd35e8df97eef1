"""The base class of trackers. Every evaluation is written once, however often a run is interrupted."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from offbeat.errors import ConfigError
from offbeat.runs.callbacks.base import Callback, Line, RunInfo, RunOutcome

FOLDER = "track"  # subfolder of the run folder with the trackers' state
WRITE_SECONDS = 1.0  # longest time for which evaluations are buffered


@dataclass(frozen=True)
class TrackerState:
    """The state that a tracker needs to continue a resumed run."""

    id: str | None = None  # the tracker's ID of the run; None for a new run
    version: int = -1  # of the last evaluation that was written
    began: float = field(default_factory=time.time)  # seconds since the epoch

    @classmethod
    def of(cls, file: pathlib.Path | None) -> TrackerState:
        """Read a saved state; return a new one if that is not possible."""
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8"))) if file is not None else cls()
        except (OSError, ValueError, TypeError):
            return cls()

    def save(self, file: pathlib.Path | None) -> None:
        """Write the state to a file, atomically."""
        if file is None or not file.parents[1].is_dir():  # a run that fails at once leaves no folder
            return
        file.parent.mkdir(exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(asdict(self)), encoding="utf-8")
        part.replace(file)

    def time_of(self, line: Line) -> float:
        """Return a timestamp for an evaluation, such that the time since the beginning is virtual time."""
        return self.began + float(line["virtual_seconds"])


class TrackedRun(ABC):
    """One run in a tracker. The tracker updates its `state`."""

    state: TrackerState

    @abstractmethod
    def write(self, lines: Sequence[Line]) -> None:
        """Write further evaluations."""

    @abstractmethod
    def close(self, outcome: RunOutcome) -> None:
        """Mark the run as ended; a resumed run opens it again."""


class Tracker(Callback, ABC):
    """Base class of callbacks that write evaluations to an experiment tracker.

    Args:
        place: Where to write; None selects the default of the tracker.
    """

    library: ClassVar[str]
    """Name of the Python package that the tracker needs."""

    def __init__(self, place: str | os.PathLike[str] | None) -> None:
        if importlib.util.find_spec(self.library) is None:
            raise ConfigError(
                f"{type(self).__name__} needs {self.library}; install it with: pip install 'offbeat[track]'"
            )
        self.place = os.fspath(place) if place is not None else None
        self._writers: dict[RunInfo, _BufferedWriter] = {}

    @abstractmethod
    def open(self, run: RunInfo, state: TrackerState) -> TrackedRun:
        """Continue the run that the state identifies, or create a new one."""

    def on_run_begin(self, run: RunInfo) -> None:
        """Open the run in the tracker and write evaluations that it lacks."""
        file = run.folder / FOLDER / f"{self.library}.json" if run.folder is not None else None
        tracked = self.open(run, TrackerState.of(file))
        tracked.state.save(file)
        writer = self._writers[run] = _BufferedWriter(tracked, file)
        for line in run.metrics:
            writer.add(line)

    def on_evaluation(self, run: RunInfo, line: Line) -> None:
        """Write an evaluation."""
        self._writers[run].add(line)

    def on_run_end(self, run: RunInfo, outcome: RunOutcome) -> None:
        """Write buffered evaluations and close the run."""
        writer = self._writers.pop(run)
        writer.write()
        writer.tracked.close(outcome)

    def folder(self, run: RunInfo) -> pathlib.Path:
        """Return the folder to write to: the given one, or the one that contains the run folder.

        Raises:
            ConfigError: Neither exists.
        """
        if self.place is not None:
            return pathlib.Path(self.place).resolve()
        if run.home is None:
            raise ConfigError("missing: a run without a folder needs a place to write to", key="place")
        return run.home


class _BufferedWriter:
    """Writes evaluations of one run in batches and saves the tracker's state."""

    def __init__(self, tracked: TrackedRun, file: pathlib.Path | None) -> None:
        self.tracked, self.file = tracked, file
        self._waiting: list[Line] = []
        self._last = 0.0

    def add(self, line: Line) -> None:
        if line["version"] > self.tracked.state.version:  # a killed run repeats some evaluations when it is resumed
            self._waiting.append(line)
        if time.monotonic() - self._last > WRITE_SECONDS:
            self.write()

    def write(self) -> None:
        if self._waiting:
            self.tracked.write(self._waiting)
            self.tracked.state = replace(self.tracked.state, version=self._waiting[-1]["version"])
            self.tracked.state.save(self.file)
            self._waiting = []
        self._last = time.monotonic()


def numbers(table: Mapping[str, Any]) -> dict[str, float]:
    """Return the numeric entries of a table."""
    return {k: v for k, v in table.items() if isinstance(v, int | float) and not isinstance(v, bool)}
