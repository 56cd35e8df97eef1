"""Results as tables for a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from offbeat.metric_info import ACCURACY, MetricInfo
from offbeat.report.paired import Comparison, metric_of, place_of, until, value_at
from offbeat.report.read import Record


def spread(values: Sequence[float], form: str = "{:.1f}", scale: float = 1.0) -> str:
    """Format values as mean ± sample standard deviation, or a single value on its own."""
    scaled = [scale * value for value in values]
    mean = form.format(statistics.fmean(scaled))
    return f"{mean} ± {form.format(statistics.stdev(scaled))}" if len(scaled) > 1 else mean


def size(count: float) -> str:
    """Format a number of bytes with a readable unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


MIN_LABEL, MAX_LABEL = 8, 16  # width of the first column in a narrow terminal


def fitted(table: Table, console: Console) -> Table:
    """Drop the last columns of a table that is too wide for the terminal, and say so in its caption."""
    whole = len(table.columns)
    widths = [max(map(cell_len, map(str, (column.header, *column.cells)))) for column in table.columns[1:]]
    longest = max((cell_len(str(cell)) for cell in table.columns[0].cells), default=0)
    label = min(max(longest, MIN_LABEL), MAX_LABEL)
    while len(widths) > 1 and label + 2 + sum(3 + width for width in widths) > console.width:
        widths.pop()
        table.columns.pop()
    if left := whole - len(table.columns):
        table.caption = f"{table.caption}; {left} more {'column' if left == 1 else 'columns'} in a wider terminal"
    return table


def results(summaries: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """Return a table of finished runs, with one row per label.

    Args:
        summaries: Summaries by label; those of one label are seeds of one experiment. An empty summary marks a run that
            diverged.
    """
    targets = {s["target"] for group in summaries.values() for s in group if s}
    target = targets.pop() if len(targets) == 1 else None
    seeds = max(len(group) for group in summaries.values())
    deltas = {f"{s['delta']:g}" for group in summaries.values() for s in group if s and "delta" in s}
    metrics = {s.get("metric", ACCURACY.name) for group in summaries.values() for s in group if s}
    units = {s.get("metric_unit", ACCURACY.unit) for group in summaries.values() for s in group if s}
    info = MetricInfo(metrics.pop(), None, units.pop()) if len(metrics) == len(units) == 1 else ACCURACY
    main = info.name
    late = all(s.get(f"{main}_last10") is not None for group in summaries.values() for s in group if s)
    caption = f"{main} of the last evaluation" + (f"; ± over {seeds} seeds" if seeds > 1 else "")
    caption += "; last 10: mean of the last ten evaluations" if late else ""
    caption += f"; ε at δ = {', '.join(sorted(deltas))}" if deltas else ""
    real = all(s.get("real") for group in summaries.values() for s in group)
    named = {s.get("target_metric", main) for group in summaries.values() for s in group if s}
    goal = _value(info, target or 0) if named == {main} else f"{', '.join(map(str, named))} {target}"
    timed = f"s to {goal}" if target is not None else "s" if real else "virtual s"
    shown = {"last 10": late, timed: True, "ε": bool(deltas)}
    table = plain_table(caption, _heading(info), *(name for name in shown if shown[name]), "rounds", "up", "τ mean/max")
    for name, whole in summaries.items():
        label, group = name, [summary for summary in whole if summary]
        if not group:
            table.add_row(label, "diverged")
            continue
        if len(group) < len(whole):
            label = f"{label} ({len(whole) - len(group)} of {len(whole)} diverged)"
        table.add_row(
            label,
            _spread(info, [s[main] for s in group]),
            *((_spread(info, [s[f"{main}_last10"] for s in group]),) if late else ()),
            _time(group, target),
            *((_epsilon(group),) if deltas else ()),
            f"{statistics.fmean(s['rounds'] for s in group):,.0f}",
            size(statistics.fmean(s["bytes_up"] for s in group)),
            f"{statistics.fmean(s['staleness_mean'] for s in group):.2f}/{max(s['staleness_max'] for s in group)}",
        )
    return table


def _heading(info: MetricInfo) -> str:
    return "acc %" if info.name == ACCURACY.name else info.title


def _value(info: MetricInfo, value: float) -> str:
    return f"{info.scale * value:g} {info.unit}".rstrip()


def _spread(info: MetricInfo, values: Sequence[float]) -> str:
    return spread(values, scale=100) if info.unit == "%" else spread(values, "{:.4g}")


def _epsilon(group: Sequence[Mapping[str, Any]]) -> str:
    """Format the largest ε of the seeds, or a dash if one of them has none."""
    values = [s.get("epsilon") for s in group]
    return "–" if None in values else f"{max(values):.3g}"  # type: ignore[type-var]


def compared(
    records: Sequence[Record],
    target: float | None = None,
    metric: str | None = None,
    at: Mapping[str, float] | None = None,
) -> Table:
    """Return a table that compares runs, finished or not, with one row per label.

    Args:
        records: The runs; those with one label are seeds of one experiment.
        target: Value of the metric to reach, as in the files; by default the target of the runs, if they agree on one.
        metric: Name of the metric; the main one of the first run by default.
        at: Point at which to compare, as in `offbeat.report.paired.compare`; the end of the runs by default.
    """
    info, place = metric_of(records, metric), place_of(at)
    own = {record.target for record in records if record.metrics and record.metric.name == info.name}
    target = own.pop() if target is None and len(own) == 1 else target
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.label, []).append(record)
    counts = {len(group) for group in groups.values()}
    caption = f"{info.name} {last_evaluation(at)}" + (f", ± over {max(counts)} seeds" if max(counts) > 1 else "")
    if target is not None:
        caption += f"; rounds, seconds and uploaded bytes until {_value(info, target)}"
    table = plain_table(caption, _heading(info), *(("seeds",) if len(counts) > 1 else ()), "rounds", "s", "up")
    for label, group in groups.items():
        some = [until(record, place) for record in group if value_at(record, info.name, place) is not None]
        states = sorted({record.state for record in group} - {"finished"})
        name = escape(f"{label} ({', '.join(states)})" if states else label)
        if some:
            value = _spread(info, [lines[-1][info.name] for lines in some])
            count = (str(len(some)),) if len(counts) > 1 else ()
            table.add_row(name, value, *count, *_until(some, target, info))
        else:
            table.add_row(name)
    return table


def means(found: Comparison) -> Table:
    """Return a table of the mean and the sample standard deviation of each experiment over its seeds."""
    several = any(len(values) > 1 for values in found.values.values())
    caption = f"{found.metric.name} {last_evaluation(found.at)}{', ± over the seeds' if several else ''}"
    table = plain_table(caption, _heading(found.metric), "seeds")
    for label, values in found.values.items():
        if values:
            table.add_row(escape(label), _spread(found.metric, list(values.values())), str(len(values)))
    return table


def differences(found: Comparison) -> Table:
    """Return a table of paired differences."""
    info, many = found.metric, sum(each.p is not None or each.sign_p is not None for each in found.differences)
    unit = "points" if info.unit == "%" else info.unit
    caption = f"difference of {info.name}{f' in {unit}' if unit else ''} {last_evaluation(found.at)}, seed by seed"
    caption += "; p-values corrected for the number of comparisons (Holm), intervals are not" if many > 1 else ""
    interval = f"{100 * found.confidence:g} % interval"
    table = plain_table(caption, "seeds", "difference", interval, "p (t-test)", "p (sign test)", "higher in")
    for each in found.differences:
        ends = (
            "–" if each.low is None or each.high is None else f"{signed(info, each.low)} to {signed(info, each.high)}"
        )
        count = len(each.values)
        cells = (signed(info, each.mean), ends, probability(each.p_holm), probability(each.sign_p_holm))
        table.add_row(escape(f"{each.label} − {each.baseline}"), str(count), *cells, f"{each.above} of {count}")
    return table


def settings(rows: Mapping[str, Mapping[str, str]]) -> Table:
    """Return a table of the keys in which the configs of experiments differ, with the shorter side as columns."""
    labels = list(next(iter(rows.values())))
    by_label = {label: {key: values[label] for key, values in rows.items()} for label in labels}
    shown = by_label if len(labels) > len(rows) else rows
    table = plain_table("settings that differ", *map(escape, next(iter(shown.values()))))
    for column in table.columns[1:]:
        column.no_wrap, column.overflow = False, "fold"
    for name, values in shown.items():
        table.add_row(escape(name), *map(escape, values.values()))
    return table


def plain_table(caption: str, *columns: str) -> Table:
    """Return an empty table with a column of names and the given columns of numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left", caption_style="dim")
    table.add_column("", style="bold", overflow="fold", min_width=MIN_LABEL)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def last_evaluation(at: Mapping[str, float] | None) -> str:
    """Return in words at which evaluation the runs are compared."""
    places = [f"{name} = {value:,g}" for name, value in (at or {}).items()]
    return f"of the last evaluation up to {places[0]}" if places else "of the last evaluation"


def signed(info: MetricInfo, value: float) -> str:
    """Format a difference with its sign: percentages in points with two digits."""
    return (f"{100 * value:+.2f}" if info.unit == "%" else f"{value:+.4g}").replace("-", "−")


def probability(value: float | None) -> str:
    """Format a p-value."""
    if value is None:
        return "–"
    return "< 0.0001" if value < 1e-4 else f"{value:.2g}" if value < 0.1 else f"{value:.2f}"


def _until(runs: Sequence[Sequence[Mapping[str, Any]]], target: float | None, info: MetricInfo) -> list[str]:
    """Format the mean rounds, seconds and bytes until the target, over the runs that reach it.

    Without a target, format those until the end.
    """
    reached = [next((line for line in lines if _reaches(info, line, target)), None) for lines in runs]
    ends = [lines[-1] for lines in runs] if target is None else [line for line in reached if line is not None]
    if not ends:
        return ["never"]
    share = f" ({len(ends)}/{len(runs)})" if len(ends) < len(runs) else ""
    mean = {name: statistics.fmean(line[name] for line in ends) for name in ("version", "virtual_seconds", "bytes_up")}
    return [f"{mean['version']:,.0f}{share}", f"{mean['virtual_seconds']:,.0f}", size(mean["bytes_up"])]


def _reaches(info: MetricInfo, line: Mapping[str, Any], target: float | None) -> bool:
    value = line.get(info.name)
    return target is None or (value is not None and info.reaches(value, target))


def _time(group: Sequence[Mapping[str, Any]], target: float | None) -> str:
    """Format the virtual seconds until the target, and the number of seeds that reach it unless all do."""
    if target is None:
        return spread([s["virtual_seconds"] for s in group])
    reached = [s["target_seconds"] for s in group if s["target_seconds"] is not None]
    if not reached:
        return "never"
    share = "" if len(reached) == len(group) else f" ({len(reached)}/{len(group)})"
    return spread(reached, "{:.0f}") + share
