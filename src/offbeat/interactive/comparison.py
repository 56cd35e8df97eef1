"""Comparisons of runs and sweeps."""

from __future__ import annotations

import os
import pathlib
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offbeat.errors import OffbeatError
from offbeat.interactive.frames import frame, pandas
from offbeat.interactive.result import Result
from offbeat.report import notes, paired, read
from offbeat.report.paired import Comparison
from offbeat.report.read import Record

if TYPE_CHECKING:
    from offbeat.interactive.sweep import SweepResult
    from offbeat.report.markup import Form

COLUMNS = ("label", "baseline", "seeds", "mean", "low", "high", "p", "p_holm", "sign_p", "sign_p_holm")
"""The columns of the data frame of differences."""


@dataclass(frozen=True)
class Row:
    """One experiment of a comparison."""

    label: str
    seeds: tuple[int | None, ...]
    values: tuple[float, ...]
    """The value of each seed; a fraction for percentages."""

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """The sample standard deviation over the seeds; None for a single one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True, repr=False)
class ComparisonTable(Comparison):
    """The mean and the standard deviation of a metric for each experiment, and their differences, seed by seed."""

    @property
    def rows(self) -> list[Row]:
        """The experiments with their values."""
        return [Row(label, tuple(values), tuple(values.values())) for label, values in self.values.items() if values]

    @property
    def table(self) -> Any:
        """The means as a data frame of pandas, with one row per experiment."""
        rows = [{"label": r.label, "seeds": len(r.values), "mean": r.mean, "std": r.std} for r in self.rows]
        return frame(rows, "comparison.rows")

    def to_frame(self) -> Any:
        """Return the differences as a data frame of pandas, with one row per pair of experiments."""
        rows = [[len(d.seeds) if name == "seeds" else getattr(d, name) for name in COLUMNS] for d in self.differences]
        numbers = dict.fromkeys(COLUMNS[3:], float)  # an absent p-value is NaN
        return pandas("comparison.differences").DataFrame(rows, columns=COLUMNS).astype(numbers)

    def latex(self) -> str:
        """Return the tables in LaTeX, for the package booktabs."""
        return self._document("latex")

    def markdown(self) -> str:
        """Return the tables in Markdown."""
        return self._document("markdown")

    def __repr__(self) -> str:
        return self._document("text")

    def _repr_html_(self) -> str:
        return self._document("html")

    def _document(self, form: Form) -> str:
        from offbeat.report import markup, tables

        shown = [tables.means(self), *([tables.differences(self)] if self.differences else [])]
        return markup.document(shown, self.notes, form)


def compare(
    *runs: Result | SweepResult | str | os.PathLike[str],
    metric: str | None = None,
    at: Mapping[str, float] | None = None,
    baseline: str | None = None,
    confidence: float = 0.95,
) -> ComparisonTable:
    """Compare runs by a metric: mean and standard deviation over seeds, and paired differences, seed by seed.

    Args:
        runs: Results, sweeps, or folders of runs or sweeps; runs with one label are seeds of one experiment.
        metric: The metric; by default the main metric of the first run.
        at: Where to compare, such as `{"virtual_seconds": 100}`, `{"version": …}`, `{"bytes": …}`, `{"updates": …}` or
            `{"client_steps": …}`: the last evaluation that is not after it counts. By default the last evaluation of
            finished runs.
        baseline: The label with which all others are compared. By default all pairs on the same data, model and task;
            with more than five experiments, each with the first one.
        confidence: Probability that the confidence interval of one difference contains the expected difference.

    Raises:
        OffbeatError: There is no such metric, axis or experiment, or no run to compare.
    """
    found = {record.path.resolve(): record for each in runs for record in _records(each)}
    records, remarks = notes.distinct(read.distinguish(list(found.values())))
    if not any(record.metrics for record in records):
        raise OffbeatError("compare: there is no run with an evaluation")
    made = paired.compare(records, metric, at, baseline, confidence)
    remarks += [*made.notes, *notes.differences(records)]
    return ComparisonTable(made.metric, made.at, made.confidence, made.differences, remarks, made.values)


def _records(each: Any) -> list[Record]:
    if isinstance(each, Result):
        return [each.record]
    if isinstance(each, str | os.PathLike):
        return read.records([pathlib.Path(each)])
    return [result.record for result in each.results]
