"""Comparisons of runs and sweeps."""

from __future__ import annotations

import html
import os
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offbeat.errors import OffbeatError, nearest
from offbeat.interactive.frames import frame
from offbeat.interactive.result import Result
from offbeat.metric_info import MetricInfo
from offbeat.report import notes, read
from offbeat.report.read import Record

if TYPE_CHECKING:
    from offbeat.interactive.sweep import SweepResult

PLACES = {"virtual_seconds": "virtual seconds", "version": "rounds", "updates": "updates",
          "client_steps": "client steps", "bytes_up": "uploaded bytes"}  # fmt: skip
"""What a comparison may fix, by its column, with the words for it."""


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
class ComparisonTable:
    """The mean and the standard deviation of a metric for each experiment."""

    metric: MetricInfo
    at: Mapping[str, float]
    """Where the runs are compared, such as {"virtual_seconds": 100}; empty for the last evaluation."""
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    """What a reader should know: other data or models, other budgets, runs that are left out."""

    @property
    def table(self) -> Any:
        """The rows as a data frame of pandas."""
        rows = [{"label": r.label, "seeds": len(r.values), "mean": r.mean, "std": r.std} for r in self.rows]
        return frame(rows, "comparison.rows")

    @property
    def caption(self) -> str:
        """What is compared, and where."""
        place = " and ".join(f"{value:g} {PLACES[name]}" for name, value in self.at.items())
        return f"{self.metric.title} at {place}" if place else f"{self.metric.title} of the last evaluation"

    def _cells(self) -> list[tuple[str, str, str]]:
        from offbeat.report.tables import spread

        form = "{:.1f}" if self.metric.unit == "%" else "{:.4g}"
        return [(r.label, spread(r.values, form, self.metric.scale), str(len(r.values))) for r in self.rows]

    def __repr__(self) -> str:
        width = max((len(row.label) for row in self.rows), default=0)
        lines = [f"{label:{width}}  {value}  ({n} seed{'s' * (n != '1')})" for label, value, n in self._cells()]
        return "\n".join([self.caption, *lines, *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        head = f"<tr><th></th><th>{html.escape(self.metric.title)}</th><th>seeds</th></tr>"
        body = "".join(
            f"<tr><th>{html.escape(label)}</th><td>{html.escape(value)}</td><td>{n}</td></tr>"
            for label, value, n in self._cells()
        )
        more = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<table><caption>{html.escape(self.caption)}</caption>{head}{body}</table>{more}"


def compare(
    *runs: Result | SweepResult | str | os.PathLike[str],
    metric: str | None = None,
    at: Mapping[str, float] | None = None,
) -> ComparisonTable:
    """Compare runs by a metric, with mean and standard deviation over seeds.

    Args:
        runs: Results, sweeps, or folders of runs or sweeps; runs with one label are seeds of one experiment.
        metric: The metric; by default the main metric of the first run.
        at: Where to compare, such as `{"virtual_seconds": 100}`: the last evaluation up to there counts. By default the
            last evaluation of each run.

    Raises:
        OffbeatError: There is no such metric or place, or no run to compare.
    """
    if at is not None and not (at.keys() <= PLACES.keys()):
        unknown = min(at.keys() - PLACES.keys())
        raise OffbeatError(f"at: there is no {unknown!r}; {nearest(unknown, list(PLACES))}")
    found = {record.path.resolve(): record for each in runs for record in _records(each)}
    records, remarks = notes.distinct(read.distinguish(list(found.values())))
    records = [record for record in records if record.metrics]
    if not records:
        raise OffbeatError("compare: there is no run with an evaluation")
    info = _metric(records, metric)
    groups: dict[str, list[tuple[int | None, float]]] = {}
    for record in records:
        lines = [line for line in record.metrics if all(line[name] <= limit for name, limit in (at or {}).items())]
        value = lines[-1].get(info.name) if lines else None
        if value is None:
            remarks.append(f"{record.label}, seed {record.seed} is left out: it has no {info.name} there")
            continue
        if at and record.state == "finished" and any(record.metrics[-1][n] < limit for n, limit in at.items()):
            remarks.append(f"{record.label}, seed {record.seed} ended earlier; its last evaluation counts")
        groups.setdefault(record.label, []).append((record.seed, float(value)))
    rows = [Row(label, tuple(s for s, _ in each), tuple(v for _, v in each)) for label, each in groups.items()]
    return ComparisonTable(info, dict(at or {}), rows, [*remarks, *notes.differences(records)])


def _records(each: Any) -> list[Record]:
    if isinstance(each, Result):
        return [each.record]
    if isinstance(each, str | os.PathLike):
        return read.records([pathlib.Path(each)])
    return [result.record for result in each.results]


def _metric(records: Sequence[Record], name: str | None) -> MetricInfo:
    known = {info.name: info for record in reversed(records) for info in record.task_metrics}
    if name is None:
        return records[0].metric
    if name not in known:
        raise OffbeatError(f"metric: the runs have no {name!r}; {nearest(name, list(known))}")
    return known[name]
