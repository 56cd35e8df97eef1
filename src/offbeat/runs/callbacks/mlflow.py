"""MLflow."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from offbeat.runs.callbacks.base import Line, RunInfo, RunOutcome
from offbeat.runs.callbacks.tracker import Known, Page, Tracker, numbers

FILE = "mlflow.db"
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
PARAMETERS, METRICS = 100, 1000  # that MLflow takes at once
CHARACTERS = 500  # of a parameter that every MLflow takes


class MLflow(Tracker):
    """Writes into a file, which `mlflow ui --backend-store-uri sqlite:///PLACE/mlflow.db` shows, or to a server.

    place       folder of the file, or a server, such as "http://localhost:5000"; MLFLOW_TRACKING_URI if that is set, or
                beside the run's folder when left out
    experiment  under which MLflow has the runs

    A step is a version, and the relative time that MLflow shows is virtual time.  The settings are parameters, and the
    figures of the summary are metrics whose names begin with "summary/".
    """

    library: ClassVar[str] = "mlflow"

    def __init__(self, place: str | os.PathLike[str] | None = None, experiment: str = "offbeat") -> None:
        super().__init__(place)
        self.experiment = experiment
        self.address = os.environ.get("MLFLOW_TRACKING_URI") if place is None else None
        if self.place is not None and "://" in self.place:
            self.address = self.place

    def open(self, run: RunInfo, known: Known) -> Page:
        with _quiet():
            client = self._client(run)
            return _again(client, known) or self._new(client, run, known)

    def _client(self, run: RunInfo) -> Any:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # or it tells its makers
        from mlflow.tracking import MlflowClient

        if self.address is not None:
            return MlflowClient(self.address)
        self.folder(run).mkdir(parents=True, exist_ok=True)
        return MlflowClient(f"sqlite:///{self.folder(run) / FILE}")

    def _new(self, client: Any, run: RunInfo, known: Known) -> Page:
        from mlflow.entities import Param

        found = client.get_experiment_by_name(self.experiment)
        files = None if self.address is not None else str(self.folder(run) / "mlartifacts")
        experiment = found.experiment_id if found is not None else client.create_experiment(self.experiment, files)
        id_ = client.create_run(experiment, run_name=run.name).info.run_id
        settings = [Param(key, str(value)[:CHARACTERS]) for key, value in _flat(run.config)]
        for first in range(0, len(settings), PARAMETERS):
            client.log_batch(id_, params=settings[first : first + PARAMETERS])
        return _Run(client, replace(known, id=id_, version=-1))


def _again(client: Any, known: Known) -> Page | None:
    """The run that is known, if it is in this store; how far it has got, the store itself says."""
    from mlflow.exceptions import MlflowException

    if known.id is None:
        return None
    try:
        client.update_run(known.id, status="RUNNING")
    except MlflowException:
        return None
    steps = [metric.step for metric in client.get_metric_history(known.id, "virtual_seconds")]
    return _Run(client, replace(known, version=max(steps, default=-1)))


class _Run(Page):
    def __init__(self, client: Any, known: Known) -> None:
        self._client, self.known = client, known
        self._time = known.began  # of the last line

    def write(self, lines: Sequence[Line]) -> None:
        metrics = []
        for line in lines:
            self._time = self.known.time_of(line)
            values = {name: value for name, value in numbers(line).items() if name != "version"}
            metrics += self._metrics(values, line["version"])
        self._log(metrics)

    def close(self, ending: RunOutcome) -> None:
        if ending.state == "finished" and ending.summary is not None:
            figures = {f"summary/{name}": value for name, value in numbers(ending.summary).items()}
            self._log(self._metrics(figures, self.known.version))
        self._client.set_terminated(self.known.id, STATUS[ending.state])

    def _metrics(self, values: Mapping[str, float], version: int) -> list[Any]:
        from mlflow.entities import Metric

        return [Metric(name, float(value), round(1000 * self._time), version) for name, value in values.items()]

    def _log(self, metrics: Sequence[Any]) -> None:
        for first in range(0, len(metrics), METRICS):
            self._client.log_batch(self.known.id, metrics=metrics[first : first + METRICS])


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """`a.b` for every key of a table of tables."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What MLflow says of its tables, and its libraries of each other, is nothing to the user."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
