"""The interface of callbacks.

A run calls its callbacks when it begins, after every evaluation and when it ends, in its own process and between two
turns of the server loop.
"""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Line = dict[str, Any]  # a line of metrics.jsonl

_LOG = logging.getLogger("offbeat")


@dataclass(frozen=True, eq=False)
class RunInfo:
    """The description of a run for its callbacks: the same object from beginning to end."""

    name: str
    """The name of the run folder; for a run of a sweep relative to the sweep, such as "ca2fl/seed-0"."""
    folder: pathlib.Path | None
    """The run folder, if there is one."""
    config: Mapping[str, Any]
    """The complete experiment, as in config.toml."""
    metrics: Sequence[Line]
    """Earlier evaluations of a resumed run, for which `on_evaluation` is not called again."""
    stop: Callable[[], None] = lambda: None
    """Ends the run after the current turn; it counts as finished."""
    model: Callable[..., Any] = lambda client=None: None
    """Returns a copy of the module with the newest weights, or the one with which a client is tested: `model(client)`.
    With parameters that stay on the clients, `model()` has their initial values."""

    @property
    def home(self) -> pathlib.Path | None:
        """The folder that contains the run folder, or the folder of the whole sweep."""
        if self.folder is None:
            return None
        return self.folder.resolve().parents[len(pathlib.PurePath(self.name).parts) - 1]


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended."""

    state: Literal["finished", "interrupted", "failed"]
    summary: Mapping[str, Any] | None = None
    """The result in figures, as in summary.json; preliminary for an interrupted run, None for a failed one."""
    error: Exception | None = None
    """The error of a failed run."""


class Callback:
    """Base class of callbacks. Override the methods that you need.

    One callback may follow several runs at once, as in a sweep; `run` identifies the run. If a callback raises an
    error, the run logs a warning and continues without it.
    """

    def on_run_begin(self, run: RunInfo) -> None:
        """Called when a run starts or resumes; its folder exists."""

    def on_evaluation(self, run: RunInfo, line: Line) -> None:
        """Called after each evaluation.

        With `evaluation.per_client` and `per_label`, the line also has `per_client` and `per_label`: for each metric a
        list with one value per client or label, None where there is no test example.
        """

    def on_run_end(self, run: RunInfo, outcome: RunOutcome) -> None:
        """Called when a run has ended and everything is written, unless the process was killed."""


class CallbackList:
    """The callbacks of one run. Their errors do not end it."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = list(callbacks)
        self._run: RunInfo | None = None

    def on_run_begin(self, run: Callable[[], RunInfo]) -> None:
        """Call `on_run_begin`; `run` is called only if there are callbacks."""
        if self._callbacks:
            info = self._run = run()
            self._call("on_run_begin", lambda callback: callback.on_run_begin(info))

    def on_evaluation(self, line: Mapping[str, Any]) -> None:
        """Call `on_evaluation`."""
        if (run := self._run) is not None:
            self._call("on_evaluation", lambda callback: callback.on_evaluation(run, dict(line)))

    def on_run_end(self, outcome: RunOutcome) -> None:
        """Call `on_run_end`."""
        if (run := self._run) is not None:
            self._call("on_run_end", lambda callback: callback.on_run_end(run, outcome))

    def _call(self, method: str, call: Callable[[Callback], None]) -> None:
        for callback in self._callbacks:
            try:
                call(callback)
            except Exception as error:  # a user's code may raise anything
                self._callbacks = [other for other in self._callbacks if other is not callback]
                name = self._run.name if self._run is not None else ""
                _LOG.warning(
                    "%s: callback %s failed in %s and is disabled for this run: %s: %s",
                    name, type(callback).__name__, method, type(error).__name__, error,
                )  # fmt: skip
