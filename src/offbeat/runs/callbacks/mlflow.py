"""The tracker for MLflow."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from offbeat.runs.callbacks.base import Line, RunInfo, RunOutcome
from offbeat.runs.callbacks.tracker import TrackedRun, Tracker, TrackerState, numbers

FILE = "mlflow.db"
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
PARAMETERS, METRICS = 100, 1000  # MLflow's limits per request
CHARACTERS = 500  # limit of a parameter that all versions of MLflow accept


class MLflow(Tracker):
    """Write runs to a database file or to an MLflow server.

    `mlflow ui --backend-store-uri sqlite:///PLACE/mlflow.db` shows the file. A step is a version, and the relative time
    is virtual time. Settings become parameters; the figures of the summary become metrics that begin with "summary/".

    Args:
        place: Folder of the database file, or the URL of a server, such as "http://localhost:5000". The default is
            MLFLOW_TRACKING_URI, or else the folder that contains the run folder.
        experiment: MLflow's experiment for the runs.
    """

    library: ClassVar[str] = "mlflow"

    def __init__(self, place: str | os.PathLike[str] | None = None, experiment: str = "offbeat") -> None:
        super().__init__(place)
        self.experiment = experiment
        self.address = os.environ.get("MLFLOW_TRACKING_URI") if place is None else None
        if self.place is not None and "://" in self.place:
            self.address = self.place

    def open(self, run: RunInfo, state: TrackerState) -> TrackedRun:
        """Continue the run in MLflow, or create it."""
        with _quiet():
            client = self._client(run)
            return _reopen(client, state) or self._create(client, run, state)

    def _client(self, run: RunInfo) -> Any:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # no reports to MLflow's developers
        from mlflow.tracking import MlflowClient

        if self.address is not None:
            return MlflowClient(self.address)
        self.folder(run).mkdir(parents=True, exist_ok=True)
        return MlflowClient(f"sqlite:///{self.folder(run) / FILE}")

    def _create(self, client: Any, run: RunInfo, state: TrackerState) -> TrackedRun:
        from mlflow.entities import Param

        found = client.get_experiment_by_name(self.experiment)
        files = None if self.address is not None else str(self.folder(run) / "mlartifacts")
        experiment = found.experiment_id if found is not None else client.create_experiment(self.experiment, files)
        id_ = client.create_run(experiment, run_name=run.name).info.run_id
        settings = [Param(key, str(value)[:CHARACTERS]) for key, value in _flat(run.config)]
        for first in range(0, len(settings), PARAMETERS):
            client.log_batch(id_, params=settings[first : first + PARAMETERS])
        return _MLflowRun(client, replace(state, id=id_, version=-1))


def _reopen(client: Any, state: TrackerState) -> TrackedRun | None:
    """Return the run of a saved state, if this store has it; the store knows which evaluations it has."""
    from mlflow.exceptions import MlflowException

    if state.id is None:
        return None
    try:
        client.update_run(state.id, status="RUNNING")
    except MlflowException:
        return None
    steps = [metric.step for metric in client.get_metric_history(state.id, "virtual_seconds")]
    return _MLflowRun(client, replace(state, version=max(steps, default=-1)))


class _MLflowRun(TrackedRun):
    def __init__(self, client: Any, state: TrackerState) -> None:
        self._client, self.state = client, state
        self._time = state.began  # of the last evaluation

    def write(self, lines: Sequence[Line]) -> None:
        metrics = []
        for line in lines:
            self._time = self.state.time_of(line)
            values = {name: value for name, value in numbers(line).items() if name != "version"}
            metrics += self._metrics(values, line["version"])
        self._log(metrics)

    def close(self, outcome: RunOutcome) -> None:
        if outcome.state == "finished" and outcome.summary is not None:
            figures = {f"summary/{name}": value for name, value in numbers(outcome.summary).items()}
            self._log(self._metrics(figures, self.state.version))
        self._client.set_terminated(self.state.id, STATUS[outcome.state])

    def _metrics(self, values: Mapping[str, float], version: int) -> list[Any]:
        from mlflow.entities import Metric

        return [Metric(name, float(value), round(1000 * self._time), version) for name, value in values.items()]

    def _log(self, metrics: Sequence[Any]) -> None:
        for first in range(0, len(metrics), METRICS):
            self._client.log_batch(self.state.id, metrics=metrics[first : first + METRICS])


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the entries of nested tables with dotted keys."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the log messages of MLflow about its database and the warnings of its dependencies."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
