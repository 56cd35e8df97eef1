"""Who is told how a run goes.

A callback hears of a run's beginning, of every line of metrics, once, and of its end.  It is called between two turns
of the run, in the run's own process.
"""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Line = dict[str, Any]  # of metrics.jsonl

_LOG = logging.getLogger("offbeat")


@dataclass(frozen=True, eq=False)
class RunInfo:
    """A run, as its callbacks know it: the same object from its beginning to its end."""

    name: str
    """The run's folder; of a run in a sweep the folder within the sweep's, such as "ca2fl/seed-0"."""
    folder: pathlib.Path | None
    """Where the run is written, if it is."""
    config: Mapping[str, Any]
    """The complete experiment, as in config.toml."""
    metrics: Sequence[Line]
    """Lines that a resumed run has from before; none of them is told again."""

    @property
    def home(self) -> pathlib.Path | None:
        """What the run lies in, with its like: the folder of the run's folder, or of the whole sweep."""
        if self.folder is None:
            return None
        return self.folder.resolve().parents[len(pathlib.PurePath(self.name).parts) - 1]


@dataclass(frozen=True)
class RunOutcome:
    """How a run has ended."""

    state: Literal["finished", "interrupted", "failed"]
    summary: Mapping[str, Any] | None = None
    """The result in figures, as in summary.json; of an interrupted run, so far; of a failed one, None."""
    error: Exception | None = None
    """Why it has failed."""


class Callback:
    """Hears how runs go.  Override what you need.

    One callback may serve several runs at once, as in a sweep; `run` says which.  If it raises, the run goes on
    without it: there is one warning, and this callback hears no more of this run.
    """

    def on_run_begin(self, run: RunInfo) -> None:
        """The run begins, or goes on; its folder is there."""

    def on_evaluation(self, run: RunInfo, line: Line) -> None:
        """A line was added to the run's metrics."""

    def on_run_end(self, run: RunInfo, ending: RunOutcome) -> None:
        """Nothing more happens, and everything is written; not heard of by what was killed."""


class CallbackList:
    """The callbacks of one run.  Nothing that they do ends it."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = list(callbacks)
        self._run: RunInfo | None = None

    def on_run_begin(self, run: Callable[[], RunInfo]) -> None:
        """`run` is asked only if there is anybody to be told."""
        if self._callbacks:
            about = self._run = run()
            self._tell("on_run_begin", lambda callback: callback.on_run_begin(about))

    def on_evaluation(self, line: Mapping[str, Any]) -> None:
        if (run := self._run) is not None:
            self._tell("on_evaluation", lambda callback: callback.on_evaluation(run, dict(line)))

    def on_run_end(self, ending: RunOutcome) -> None:
        if (run := self._run) is not None:
            self._tell("on_run_end", lambda callback: callback.on_run_end(run, ending))

    def _tell(self, what: str, call: Callable[[Callback], None]) -> None:
        for callback in self._callbacks:
            try:
                call(callback)
            except Exception as error:  # a user's code may raise anything
                self._callbacks = [other for other in self._callbacks if other is not callback]
                name = self._run.name if self._run is not None else ""
                _LOG.warning(
                    "%s: callback %s has failed in %s and is told no more: %s: %s",
                    name, type(callback).__name__, what, type(error).__name__, error,
                )  # fmt: skip
