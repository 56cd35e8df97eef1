"""Counters, progress and outcome of a run."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from offbeat.algorithms import ALGORITHMS, Algorithm
from offbeat.metric_info import ACCURACY, MetricInfo
from offbeat.runs.folder import STATUS, UpdateRows
from offbeat.server.events import Arrival, Lost, Outcome


@dataclass
class RunCounters:
    """Counts of what happened in a run so far."""

    version: int = 0
    virtual_seconds: float = 0.0
    wall_seconds: float = 0.0
    updates: int = 0  # aggregated
    lost: int = 0
    late: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # by reason
    client_steps: int = 0
    bytes_up: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0

    @property
    def staleness_mean(self) -> float:
        """The mean staleness of the aggregated updates."""
        return self.staleness_sum / self.updates if self.updates else 0.0

    def count(self, outcome: Outcome) -> None:
        """Count one turn of the server loop."""
        self.virtual_seconds = outcome.now
        self.version += outcome.stepped
        if isinstance(outcome.event, Arrival):
            self.bytes_up += outcome.event.update.wire_bytes  # rejected updates were transmitted, too
        if outcome.refused is not None:
            self.refused[outcome.refused] = self.refused.get(outcome.refused, 0) + 1
        elif isinstance(outcome.event, Lost):
            self.lost += 1
        elif isinstance(outcome.event, Arrival):
            self.client_steps += outcome.event.update.steps
            if outcome.aggregated:
                self.updates += 1
                self.staleness_sum += outcome.staleness
                self.staleness_max = max(self.staleness_max, outcome.staleness)
            else:
                self.late += 1


@dataclass(frozen=True)
class RunResult:
    """What a run leaves when it ends; `ob.run` returns it as an `offbeat.interactive.Result`."""

    x: Tensor
    """The final model as a flat vector."""
    summary: dict[str, Any]
    """The result in figures, as in `summary.json`."""
    evaluations: list[dict[str, Any]]
    """The evaluations, oldest first."""
    module: Callable[[], nn.Module]
    """Returns a new module with the final weights."""
    log: Callable[[], UpdateRows]
    """Returns the log of completed jobs."""
    folder: pathlib.Path | None = None
    """The run folder, if the run wrote one."""
    interrupted: bool = False
    """Whether the run was interrupted before its end."""

    client_evaluations: list[dict[str, Any]] = field(default_factory=list)
    """One row per client and evaluation, with `evaluation.per_client` or `personalization`."""
    label_evaluations: list[dict[str, Any]] = field(default_factory=list)
    """One row per class label and evaluation, with `evaluation.per_label`."""
    personal: Mapping[str, Tensor] = field(default_factory=dict)
    """What stays on the clients of a finished run, as "client.name", such as "3.head.weight"."""
    setting: Mapping[str, Any] = field(default_factory=dict)
    """The facts that `setting.json` has, for a run without a folder."""

    @property
    def accuracy(self) -> float:
        """The final test accuracy, if the task has this metric."""
        return float(self.summary["accuracy"])


@dataclass(frozen=True)
class ProgressSnapshot:
    """The progress of a run at one moment, for displays."""

    counters: RunCounters
    rounds: int
    virtual_limit: float | None
    metrics: list[dict[str, Any]]
    real: bool = False  # whether `virtual_seconds` are seconds of the wall clock
    metric: MetricInfo = field(default_factory=lambda: ACCURACY)  # the main metric
    testing: float | None = None  # the share of the test examples that the evaluation underway has passed
    used: float | None = None  # the share of the budget that is used up


Watch = Callable[[ProgressSnapshot], None]


def algorithm_name(algorithm: Algorithm) -> str:
    """Return the name of an algorithm in TOML; for a custom one, the name of its class."""
    return next((name for name, kind in ALGORITHMS.items() if type(algorithm) is kind), type(algorithm).__name__)


def row(outcome: Outcome) -> tuple[Any, ...]:
    """Return a row of the update log, with the fields of `folder.UPDATE`."""
    event, now = outcome.event, outcome.now
    assert isinstance(event, (Arrival, Lost))
    job = event.job
    if isinstance(event, Lost):
        status = STATUS.index(outcome.refused or "lost")
        return event.sent, now, job.client, job.version, 0, job.steps, 0, status, math.nan
    status = STATUS.index(outcome.refused or ("aggregated" if outcome.aggregated else "late"))
    update = event.update
    sizes = update.steps, update.wire_bytes
    return event.sent, now, job.client, job.version, outcome.staleness, *sizes, status, update.loss
