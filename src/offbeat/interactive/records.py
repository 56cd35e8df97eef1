"""Runs as the records that tables, figures and reports are made of."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offbeat.interactive.stored import StoredRun
from offbeat.report.read import Record, read, sound
from offbeat.runs.experiment import Experiment
from offbeat.runs.folder import UPDATE, UpdateRows
from offbeat.runs.result import RunResult, algorithm_name

_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class MemoryRecord(Record):
    """A run that wrote no folder."""

    rows: UpdateRows = field(default_factory=lambda: np.zeros(0, UPDATE))

    def log(self) -> UpdateRows:
        """Return the sound rows of the update log."""
        return sound(self.rows, self.clients)


def record_of(run: RunResult | StoredRun, experiment: Experiment | None, name: str | None) -> Record:
    """Return the record of a run.

    Args:
        run: The run.
        experiment: The experiment of a run without a folder.
        name: The label; by default that of the folder, or the name of the algorithm.
    """
    if run.folder is not None:
        record = read(run.folder)
        return record if name is None else dataclasses.replace(record, label=name)
    assert experiment is not None, "a run without a folder comes with its experiment"
    from offbeat.runs import config

    label = name or algorithm_name(experiment.algorithm)
    return MemoryRecord(
        path=pathlib.Path.cwd() / f"{label}-{next(_NUMBERS)}" / f"seed-{experiment.seed}",  # tells two runs apart
        label=label,
        seed=experiment.seed,
        state="interrupted" if run.interrupted else "finished",
        config=config.describe(experiment),
        summary=run.summary,
        setting={**run.setting, "objects": _objects(experiment)},
        metrics=[{"loss": None} | line for line in run.evaluations],
        rows=run.log(),
    )


def _objects(experiment: Experiment) -> dict[str, Any]:
    """Return the identity of the objects from Python, which tell experiments apart whose configs look the same."""
    parts = {
        "model": experiment.model, "data": experiment.data.source, "partition": experiment.data.partition,
        "task": experiment.task,
    }  # fmt: skip
    return {name: f"{id(part.make)}" for name, part in parts.items() if hasattr(part, "make")}
