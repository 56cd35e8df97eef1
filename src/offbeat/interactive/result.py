"""The result of a run as Python sees it: the model, tables and figures."""

from __future__ import annotations

import functools
import html
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from offbeat.interactive.frames import frame, updates_frame
from offbeat.interactive.records import record_of
from offbeat.interactive.stored import StoredRun
from offbeat.metric_info import LOSS, MetricInfo
from offbeat.report.read import Record
from offbeat.runs.experiment import Experiment
from offbeat.runs.result import RunResult

if TYPE_CHECKING:
    from offbeat.report.figure import InlineFigure


@dataclass(frozen=True, repr=False, eq=False)
class Result:
    """The result of a run, from `ob.run` or from a folder with `ob.load`.

    `metrics`, `updates`, `client_metrics` and `label_metrics` are data frames and need pandas; `evaluations`,
    `client_evaluations` and `label_evaluations` have the same rows as lists of dicts.

    Args:
        run: The run, in memory or in its folder.
        experiment: The experiment of a run without a folder.
        name: The name of the run in tables and figures; by default that of its folder or its algorithm.
    """

    run: RunResult | StoredRun
    experiment: Experiment | None = None
    name: str | None = None

    # The model -------------------------------------------------------------------------------------------------

    @functools.cached_property
    def model(self) -> nn.Module:
        """The module with the final weights, in evaluation mode; the same object every time.

        Raises:
            OffbeatError: The run is not finished, or its folder alone is not enough to build the module.
        """
        return self.run.module()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the final weights under the module's own names, on the CPU."""
        if isinstance(self.run, StoredRun):
            return self.run.state_dict()
        return {name: value.detach().cpu() for name, value in self.model.state_dict().items()}

    @property
    def x(self) -> Tensor:
        """The final model as a flat vector."""
        return self.run.x

    @property
    def personal(self) -> Mapping[str, Tensor]:
        """What stays on the clients of a finished run, as "client.name", such as "3.head.weight"."""
        return self.run.personal

    # Figures as numbers ----------------------------------------------------------------------------------------

    @property
    def summary(self) -> dict[str, Any]:
        """The result in figures, as in `summary.json`; empty for a folder whose run is not finished."""
        return self.run.summary

    @property
    def accuracy(self) -> float:
        """The final test accuracy, if the task has this metric."""
        return float(self.evaluations[-1]["accuracy"])

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The evaluations as a list of dicts, oldest first."""
        return self.run.evaluations

    @property
    def client_evaluations(self) -> list[dict[str, Any]]:
        """One dict per client and evaluation, with `evaluation.per_client` or `personalization`."""
        return self.run.client_evaluations

    @property
    def label_evaluations(self) -> list[dict[str, Any]]:
        """One dict per class label and evaluation, with `evaluation.per_label`."""
        return self.run.label_evaluations

    @functools.cached_property
    def metrics(self) -> Any:
        """The evaluations as a data frame of pandas, one row each.

        Raises:
            OffbeatError: pandas is not installed.
        """
        return frame(self.evaluations, "result.evaluations, a list of dicts")

    @functools.cached_property
    def updates(self) -> Any:
        """The completed jobs as a data frame of pandas.

        The columns are sent and time (of arrival) in seconds, client, version (that the client started from),
        staleness, steps, bytes, loss (mean training loss), and status: aggregated, lost, late or the reason of a
        rejection.

        Raises:
            OffbeatError: pandas is not installed.
        """
        return updates_frame(self.log(), "result.log(), a structured NumPy array")

    @functools.cached_property
    def client_metrics(self) -> Any:
        """`client_evaluations` as a data frame of pandas."""
        return frame(self.client_evaluations, "result.client_evaluations, a list of dicts")

    @functools.cached_property
    def label_metrics(self) -> Any:
        """`label_evaluations` as a data frame of pandas."""
        return frame(self.label_evaluations, "result.label_evaluations, a list of dicts")

    def log(self) -> Any:
        """Return the completed jobs as a NumPy array with the fields of `updates.npy`."""
        return self.run.log()

    # The run ---------------------------------------------------------------------------------------------------

    @property
    def folder(self) -> pathlib.Path | None:
        """The run folder, if the run wrote one."""
        return self.run.folder

    @property
    def interrupted(self) -> bool:
        """Whether the run was interrupted before its end."""
        return self.run.interrupted

    @functools.cached_property
    def record(self) -> Record:
        """The run as reports and figures see it."""
        return record_of(self.run, self.experiment, self.name)

    @property
    def label(self) -> str:
        """The name of the run in tables and figures; the seeds of one experiment share it."""
        return self.record.label

    @property
    def seed(self) -> int | None:
        """The seed."""
        return self.record.seed

    # Display ---------------------------------------------------------------------------------------------------

    def plot(self, what: str | None = None, *, x: str = "virtual_seconds") -> InlineFigure:
        """Draw a figure; a notebook shows it.

        Args:
            what: A figure of `offbeat report`, such as "staleness", "participation" or "timeline"; by default the curve
                of the main metric.
            x: The horizontal axis of that curve: virtual_seconds, version or bytes_up.

        Returns:
            A figure of matplotlib, which can be changed and saved.

        Raises:
            OffbeatError: There is no such figure, or the run has no data for it.
        """
        from offbeat.interactive import figures

        return figures.curves([self.record], x) if what is None else figures.of_run(self.record, what)

    def report(self, file: str | pathlib.Path | None = None) -> pathlib.Path:
        """Write the HTML report, one file that loads nothing from the network.

        Args:
            file: The file; by default `report.html` in the run folder, or in the working folder if there is none.

        Returns:
            The path of the file.
        """
        from offbeat.interactive import figures

        return figures.report([self.record], file, self.folder, self.label)

    def __repr__(self) -> str:
        folder = f", {self.folder}" if self.folder is not None else ""
        return f"<Result {self.label}, seed {self.seed}: {'; '.join(self._facts())}{folder}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in self._rows()
        )
        return f"<table><caption>{html.escape(self.label)}, seed {self.seed}</caption>{rows}</table>"

    def _facts(self) -> list[str]:
        if not self.evaluations:
            return [f"{self.record.state}, no evaluation yet"]
        last, info = self.evaluations[-1], self.record.metric
        facts = [f"{info.name} {_value(info, last[info.name])} after {last['version']:,} rounds"]
        return facts if self.record.state == "finished" else [*facts, self.record.state]

    def _rows(self) -> list[tuple[str, str]]:
        """Return the names and values of the table that a notebook shows."""
        from offbeat.report.tables import size

        rows = [("state", self.record.state)]
        if self.evaluations:
            last = self.evaluations[-1]
            rows += [
                (info.name, _value(info, last[info.name])) for info in self.record.task_metrics if info.name in last
            ]
            rows += [
                ("rounds", f"{last['version']:,}"),
                ("seconds" if self.summary.get("real") else "virtual seconds", f"{last['virtual_seconds']:,.1f}"),
                ("updates", f"{last['updates']:,}"),
                ("staleness, mean / largest", f"{last['staleness_mean']:.2f} / {last['staleness_max']}"),
                ("uploads", size(last["bytes_up"])),
            ]
        return [*rows, ("folder", str(self.folder))] if self.folder is not None else rows


def _value(info: MetricInfo, value: float) -> str:
    return f"{value:.4g}" if info.name == LOSS.name else f"{info.format(value)} {info.unit}".rstrip()
