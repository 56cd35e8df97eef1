"""The tracker for TensorBoard."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from offbeat.runs.callbacks.base import Line, RunInfo, RunOutcome
from offbeat.runs.callbacks.tracker import TrackedRun, Tracker, TrackerState, numbers


class TensorBoard(Tracker):
    """Write one folder of events per run; `tensorboard --logdir PLACE` shows them.

    A step is a version, and the relative time is virtual time.

    Args:
        place: Folder of the runs' folders; by default "tensorboard" next to the run folder.
    """

    library: ClassVar[str] = "tensorboard"

    def __init__(self, place: str | os.PathLike[str] | None = None) -> None:
        super().__init__(place)

    def open(self, run: RunInfo, state: TrackerState) -> TrackedRun:
        """Continue the run's folder of events, or create one."""
        folder = self.folder(run) if self.place is not None else self.folder(run) / "tensorboard"
        if state.id is not None and (folder / state.id).is_dir():
            # Evaluations after the checkpoint are purged; the resumed run writes them again.
            last = run.metrics[-1]["version"] if run.metrics else -1
            return _Events(folder, replace(state, version=min(state.version, last)), resumed=True)
        names = (run.name if n == 1 else f"{run.name}-{n}" for n in itertools.count(1))
        new = next(name for name in names if not (folder / name).exists())
        events = _Events(folder, replace(state, id=new, version=-1), resumed=False)
        events.text("config", run.config)
        return events


class _Events(TrackedRun):
    def __init__(self, folder: pathlib.Path, state: TrackerState, resumed: bool) -> None:
        from torch.utils.tensorboard import SummaryWriter

        assert state.id is not None
        self.state = state
        self._writer: Any = SummaryWriter(folder / state.id, purge_step=state.version + 1 if resumed else None)

    def write(self, lines: Sequence[Line]) -> None:
        for line in lines:
            for tag, value in numbers(line).items():
                if tag != "version":
                    self._writer.add_scalar(tag, value, line["version"], self.state.time_of(line))
        self._writer.flush()

    def text(self, tag: str, table: Any) -> None:
        shown = json.dumps(table, indent=2, default=str).splitlines()
        self._writer.add_text(tag, "\n".join("    " + line for line in shown))  # a code block in Markdown

    def close(self, outcome: RunOutcome) -> None:
        if outcome.state == "finished":
            self.text("summary", outcome.summary)
        self._writer.close()
