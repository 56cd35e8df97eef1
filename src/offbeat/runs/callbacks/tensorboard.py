"""TensorBoard."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from offbeat.runs.callbacks.base import Line, RunInfo, RunOutcome
from offbeat.runs.callbacks.tracker import Known, Page, Tracker, numbers


class TensorBoard(Tracker):
    """Writes a folder of events for each run; `tensorboard --logdir PLACE` shows them.

    place   folder of the runs' folders; "tensorboard" beside the run's folder when left out

    A step is a version, and the relative time that TensorBoard shows is virtual time.
    """

    library: ClassVar[str] = "tensorboard"

    def __init__(self, place: str | os.PathLike[str] | None = None) -> None:
        super().__init__(place)

    def open(self, run: RunInfo, known: Known) -> Page:
        folder = self.folder(run) if self.place is not None else self.folder(run) / "tensorboard"
        if known.id is not None and (folder / known.id).is_dir():
            # What it has from after the checkpoint is taken back, and written again as the run does it again.
            last = run.metrics[-1]["version"] if run.metrics else -1
            return _Events(folder, replace(known, version=min(known.version, last)), again=True)
        names = (run.name if n == 1 else f"{run.name}-{n}" for n in itertools.count(1))
        new = next(name for name in names if not (folder / name).exists())
        events = _Events(folder, replace(known, id=new, version=-1), again=False)
        events.text("config", run.config)
        return events


class _Events(Page):
    def __init__(self, folder: pathlib.Path, known: Known, again: bool) -> None:
        from torch.utils.tensorboard import SummaryWriter

        assert known.id is not None
        self.known = known
        self._writer: Any = SummaryWriter(folder / known.id, purge_step=known.version + 1 if again else None)

    def write(self, lines: Sequence[Line]) -> None:
        for line in lines:
            for tag, value in numbers(line).items():
                if tag != "version":
                    self._writer.add_scalar(tag, value, line["version"], self.known.time_of(line))
        self._writer.flush()

    def text(self, tag: str, table: Any) -> None:
        shown = json.dumps(table, indent=2, default=str).splitlines()
        self._writer.add_text(tag, "\n".join("    " + line for line in shown))  # code, in Markdown

    def close(self, ending: RunOutcome) -> None:
        if ending.state == "finished":
            self.text("summary", ending.summary)
        self._writer.close()
