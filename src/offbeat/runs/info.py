"""What callbacks know about a run."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from offbeat.runs.callbacks import RunInfo
from offbeat.runs.folder import name_of
from offbeat.runs.result import algorithm_name

if TYPE_CHECKING:
    from offbeat.runs.run import Run


def run_info(run: Run) -> RunInfo:
    """Return what callbacks know about a run. It does not keep the run alive."""
    from offbeat.runs.config import describe

    path = run.records.path
    experiment = replace(run.experiment, executor=run.assembly.executor_name)
    name = name_of(path) if path else f"{algorithm_name(experiment.algorithm)}-seed{experiment.seed}"
    reference = weakref.ref(run)  # a callback may outlive the run

    def stop() -> None:
        if (alive := reference()) is not None:
            alive.stop("a callback asked for it")

    def model(client: int | None = None) -> nn.Module:
        alive = reference()
        assert alive is not None, "the run is over"
        return alive.models.module(client)

    lines = [dict(line) for line in run.metrics]
    return RunInfo(name, path, describe(experiment), lines, stop, model)
