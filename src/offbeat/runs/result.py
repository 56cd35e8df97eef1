"""What a run tells: how far it is, and what came out."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from offbeat.algorithms import ALGORITHMS, Algorithm
from offbeat.runs.folder import STATUS
from offbeat.server.events import Arrival, Lost, Outcome


@dataclass
class RunCounters:
    """What has happened so far."""

    version: int = 0
    virtual_seconds: float = 0.0
    wall_seconds: float = 0.0
    updates: int = 0  # aggregated
    lost: int = 0
    late: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # by the gate, for each reason
    client_steps: int = 0
    bytes_up: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0

    @property
    def staleness_mean(self) -> float:
        return self.staleness_sum / self.updates if self.updates else 0.0

    def count(self, outcome: Outcome) -> None:
        self.virtual_seconds = outcome.now
        self.version += outcome.stepped
        if isinstance(outcome.event, Arrival):
            self.bytes_up += outcome.event.update.wire_bytes  # also of what is refused: it has come
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
class Result:
    """What came out."""

    x: Tensor
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    folder: pathlib.Path | None = None
    interrupted: bool = False

    @property
    def accuracy(self) -> float:
        return float(self.summary["accuracy"])


@dataclass(frozen=True)
class ProgressSnapshot:
    """What a progress display is shown."""

    counters: RunCounters
    rounds: int
    virtual_limit: float | None
    metrics: list[dict[str, Any]]
    real: bool = False  # its seconds are those of the wall


Watch = Callable[[ProgressSnapshot], None]


def algorithm_name(algorithm: Algorithm) -> str:
    """As in a TOML; a user's own goes by its class."""
    return next((name for name, kind in ALGORITHMS.items() if type(algorithm) is kind), type(algorithm).__name__)


def row(outcome: Outcome) -> tuple[Any, ...]:
    """A line of the update log, in the order of `folder.UPDATE`."""
    event, now = outcome.event, outcome.now
    assert isinstance(event, (Arrival, Lost))
    job = event.job
    if isinstance(event, Lost):
        return event.sent, now, job.client, job.version, 0, job.steps, 0, STATUS.index(outcome.refused or "lost")
    status = STATUS.index(outcome.refused or ("aggregated" if outcome.aggregated else "late"))
    update = event.update
    return event.sent, now, job.client, job.version, outcome.staleness, update.steps, update.wire_bytes, status
