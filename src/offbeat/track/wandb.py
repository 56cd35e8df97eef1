"""Weights & Biases."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from offbeat.track.base import Ending, Line, RunInfo
from offbeat.track.tracker import Known, Page, Tracker, numbers

EXIT = {"finished": 0, "interrupted": 255, "failed": 1}  # which W&B shows as finished, killed, failed


class WandB(Tracker):
    """Writes folders that `wandb sync` uploads.  Nothing leaves the machine, unless WANDB_MODE is "online".

    place    in which the folder "wandb" is made; beside the run's folder when left out
    project  under which W&B has the runs

    A step is a version.  A run that is resumed has the same id; offline it gets another folder, which is uploaded with
    `wandb sync --append`.
    """

    library: ClassVar[str] = "wandb"

    def __init__(self, place: str | os.PathLike[str] | None = None, project: str = "offbeat") -> None:
        super().__init__(place)
        self.project = project

    def open(self, run: RunInfo, known: Known) -> Page:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        if known.id is None:
            known = replace(known, id=secrets.token_hex(4))
        folder = self.folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        return _Run(
            wandb.init(
                project=self.project, name=run.name, id=known.id, dir=folder, config=dict(run.config), mode=mode,
                resume="allow" if mode == "online" else None,  # offline, the id alone must do
                reinit="create_new",  # a sweep has several at once
                settings=wandb.Settings(silent=True, console="off"),
            ),
            known,
        )  # fmt: skip


class _Run(Page):
    def __init__(self, run: Any, known: Known) -> None:
        self._run, self.known = run, known

    def write(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self._run.log(numbers(line), step=line["version"])

    def close(self, ending: Ending) -> None:
        if ending.state == "finished" and ending.summary is not None:
            self._run.summary.update(dict(ending.summary))
        self._run.finish(exit_code=EXIT[ending.state])
