"""What all trackers share: every line of a run once, however often the run is interrupted."""

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

FOLDER = "track"  # in the run's folder: what a tracker must know to go on
WRITE_SECONDS = 1.0  # that lines wait for others at most, to be written with them


@dataclass(frozen=True)
class Known:
    """What a tracker knows of a run."""

    id: str | None = None  # under which it has the run; None when it has not
    version: int = -1  # of the last line that it has
    began: float = field(default_factory=time.time)  # seconds since the epoch

    @classmethod
    def of(cls, file: pathlib.Path | None) -> Known:
        """From before; nothing, if it cannot be read."""
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8"))) if file is not None else cls()
        except (OSError, ValueError, TypeError):
            return cls()

    def keep(self, file: pathlib.Path | None) -> None:
        if file is None or not file.parents[1].is_dir():  # a run that has failed at once leaves no folder
            return
        file.parent.mkdir(exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(asdict(self)), encoding="utf-8")
        part.replace(file)

    def time_of(self, line: Line) -> float:
        """For trackers that show time: as if virtual seconds had passed since the beginning."""
        return self.began + float(line["virtual_seconds"])


class Page(ABC):
    """One run, as a tracker has it.  `known` is kept up to date by the tracker."""

    known: Known

    @abstractmethod
    def write(self, lines: Sequence[Line]) -> None:
        """Write lines of later versions."""

    @abstractmethod
    def close(self, ending: RunOutcome) -> None:
        """There are no more lines, unless the run is resumed."""


class Tracker(Callback, ABC):
    """A callback that writes what it hears where others can draw it."""

    library: ClassVar[str]

    def __init__(self, place: str | os.PathLike[str] | None) -> None:
        if importlib.util.find_spec(self.library) is None:
            raise ConfigError(
                f"{type(self).__name__} needs {self.library}; install it with: pip install 'offbeat[track]'"
            )
        self.place = os.fspath(place) if place is not None else None
        self._written: dict[RunInfo, _Writing] = {}

    @abstractmethod
    def open(self, run: RunInfo, known: Known) -> Page:
        """The page on which the run goes on if there is one, else a new one; its `known` says which."""

    def on_run_begin(self, run: RunInfo) -> None:
        file = run.folder / FOLDER / f"{self.library}.json" if run.folder is not None else None
        page = self.open(run, Known.of(file))
        page.known.keep(file)
        writing = self._written[run] = _Writing(page, file)
        for line in run.metrics:  # those that it does not have: it was not there, or they did not get through
            writing.add(line)

    def on_evaluation(self, run: RunInfo, line: Line) -> None:
        self._written[run].add(line)

    def on_run_end(self, run: RunInfo, ending: RunOutcome) -> None:
        writing = self._written.pop(run)
        writing.write()
        writing.page.close(ending)

    def folder(self, run: RunInfo) -> pathlib.Path:
        """Where to write: as given, or beside the run's folder."""
        if self.place is not None:
            return pathlib.Path(self.place).resolve()
        if run.home is None:
            raise ConfigError("a run without a folder has nothing beside it: say where to write", key="place")
        return run.home


class _Writing:
    """A page, and what is to be written on it."""

    def __init__(self, page: Page, file: pathlib.Path | None) -> None:
        self.page, self.file = page, file
        self._waiting: list[Line] = []
        self._last = 0.0

    def add(self, line: Line) -> None:
        if line["version"] > self.page.known.version:  # a run that was killed says some of it again
            self._waiting.append(line)
        if time.monotonic() - self._last > WRITE_SECONDS:
            self.write()

    def write(self) -> None:
        if self._waiting:
            self.page.write(self._waiting)
            self.page.known = replace(self.page.known, version=self._waiting[-1]["version"])
            self.page.known.keep(self.file)
            self._waiting = []
        self._last = time.monotonic()


def numbers(table: Mapping[str, Any]) -> dict[str, float]:
    """What can be drawn."""
    return {k: v for k, v in table.items() if isinstance(v, int | float) and not isinstance(v, bool)}
