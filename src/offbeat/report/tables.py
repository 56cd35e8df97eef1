"""Results as tables in a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from offbeat.report.read import Record


def spread(values: Sequence[float], form: str = "{:.1f}", scale: float = 1.0) -> str:
    """mean ± standard deviation (of the sample), or the value alone when there is one."""
    scaled = [scale * value for value in values]
    mean = form.format(statistics.fmean(scaled))
    return f"{mean} ± {form.format(statistics.stdev(scaled))}" if len(scaled) > 1 else mean


def size(count: float) -> str:
    """Bytes in a readable unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


LABEL = 8  # columns of a terminal that a name has at least


def fitted(table: Table, console: Console) -> Table:
    """Without its last columns, where the terminal is too narrow for all of them."""
    whole = len(table.columns)
    widths = [max(map(cell_len, map(str, (column.header, *column.cells)))) for column in table.columns[1:]]
    while len(widths) > 1 and LABEL + 2 + sum(3 + width for width in widths) > console.width:
        widths.pop()
        table.columns.pop()
    if left := whole - len(table.columns):
        table.caption = f"{table.caption}; {left} more {'column' if left == 1 else 'columns'} in a wider terminal"
    return table


def results(summaries: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """One row a label; several summaries under one label are seeds of the same experiment."""
    targets = {s["target"] for group in summaries.values() for s in group if s}
    target = targets.pop() if len(targets) == 1 else None
    seeds = max(len(group) for group in summaries.values())
    deltas = {f"{s['delta']:g}" for group in summaries.values() for s in group if s and "delta" in s}
    caption = "accuracy: mean of the last ten evaluations" + (f"; ± over {seeds} seeds" if seeds > 1 else "")
    caption += f"; ε at δ = {', '.join(sorted(deltas))}" if deltas else ""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left", caption_style="dim")
    table.add_column("", style="bold", overflow="fold", min_width=LABEL)
    real = all(s.get("real") for group in summaries.values() for s in group)
    timed = f"s to {100 * target:g} %" if target else "s" if real else "virtual s"
    columns = ("acc %", timed, *(("ε",) if deltas else ()), "rounds", "up", "τ mean/max")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for name, whole in summaries.items():
        label, group = name, [summary for summary in whole if summary]
        if not group:
            table.add_row(label, "diverged")
            continue
        if len(group) < len(whole):
            label = f"{label} ({len(whole) - len(group)} of {len(whole)} diverged)"
        table.add_row(
            label,
            spread([s["accuracy_last10"] for s in group], scale=100),
            _time(group, target),
            *((_epsilon(group),) if deltas else ()),
            f"{statistics.fmean(s['rounds'] for s in group):,.0f}",
            size(statistics.fmean(s["bytes_up"] for s in group)),
            f"{statistics.fmean(s['staleness_mean'] for s in group):.2f}/{max(s['staleness_max'] for s in group)}",
        )
    return table


def _epsilon(group: Sequence[Mapping[str, Any]]) -> str:
    """The largest of the seeds; nothing where one of them has none."""
    found = [s.get("epsilon") for s in group]
    return "–" if None in found else f"{max(found):.3g}"  # type: ignore[type-var]


def compared(records: Sequence[Record], target: float | None = None) -> Table:
    """Runs side by side, also such as are not finished: a row a label, its seeds together.

    The target is the given one, or that of the runs where they agree.
    """
    own = {record.target for record in records if record.metrics}
    target = own.pop() if target is None and len(own) == 1 else target
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.label, []).append(record)
    seeds = max(len(group) for group in groups.values())
    words = ["accuracy of the last evaluation" + (f", ± over {seeds} seeds" if seeds > 1 else "")]
    if target is not None:
        words.append(f"rounds, seconds and bytes up: to {100 * target:g} %")
    caption = "; ".join(words)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left", caption_style="dim")
    table.add_column("", style="bold", overflow="fold", min_width=LABEL)
    for name in ("acc %", "rounds", "s", "up"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, group in groups.items():
        some = [record.metrics for record in group if record.metrics]
        states = sorted({record.state for record in group} - {"finished"})
        name = escape(f"{label} ({', '.join(states)})" if states else label)
        if some:
            accuracy = spread([lines[-1]["accuracy"] for lines in some], scale=100)
            table.add_row(name, accuracy, *_until(some, target))
        else:
            table.add_row(name)
    return table


def _until(runs: Sequence[Sequence[Mapping[str, Any]]], target: float | None) -> list[str]:
    """Rounds, seconds and bytes to the target, in the mean of the runs that reach it; without one, to the end."""
    reached = [next((line for line in lines if target is None or line["accuracy"] >= target), None) for lines in runs]
    ends = [lines[-1] for lines in runs] if target is None else [line for line in reached if line is not None]
    if not ends:
        return ["never"]
    share = f" ({len(ends)}/{len(runs)})" if len(ends) < len(runs) else ""
    mean = {name: statistics.fmean(line[name] for line in ends) for name in ("version", "virtual_seconds", "bytes_up")}
    return [f"{mean['version']:,.0f}{share}", f"{mean['virtual_seconds']:,.0f}", size(mean["bytes_up"])]


def _time(group: Sequence[Mapping[str, Any]], target: float | None) -> str:
    """Virtual seconds to the target; where some seeds never reach it, how many do."""
    if target is None:
        return spread([s["virtual_seconds"] for s in group])
    reached = [s["target_seconds"] for s in group if s["target_seconds"] is not None]
    if not reached:
        return "never"
    share = "" if len(reached) == len(group) else f" ({len(reached)}/{len(group)})"
    return spread(reached, "{:.0f}") + share


def training_rates(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What `offbeat bench train` has measured."""
    first = rows[0]
    reasons = dict.fromkeys(f"{row['executor']} cannot: {row['refused']}" for row in rows if "refused" in row)
    lines = [f"client-steps a second of n clients at once, {first['device']}, {first['precision']}", *reasons]
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, caption="\n".join(lines),
        caption_justify="left", caption_style="dim",
    )  # fmt: skip
    for name, side in (("model", "left"), ("batch", "right"), ("n", "right"), ("executor", "left")):
        table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    for name in ("median", "least", "most", "set-up"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        told = [row["model"], str(row["batch"]), str(row["group"]), row["executor"]]
        if "refused" in row:
            table.add_row(*told, "–")
            continue
        figures = [f"{row[name]:,.0f}" for name in ("client_steps_per_second", "least", "most")]
        table.add_row(*told, *figures, f"{row['setup_seconds']:.1f} s")
    return table


def engine_scale(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What `offbeat bench engine` has measured with several numbers of clients."""
    first = rows[0]
    setting = f"{first['concurrency']:,} busy, d = {first['parameters']:,}"
    caption = f"{first['algorithm']}, {first['arrivals']:,} arrivals, {setting}"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left", caption_style="dim")
    for name in ("clients", "arrivals/s", "peak MB", "bytes a client more"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            f"{row['clients']:,}",
            f"{row['arrivals_per_second']:,.0f}",
            f"{row['peak_megabytes']:,.0f}",
            f"{row['bytes_per_client']:.1f}" if "bytes_per_client" in row else "–",
        )
    return table


def server_costs(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What `offbeat bench server` has measured."""
    first = rows[0]
    fastest = max(row["copy_bytes_per_second"] for row in rows)
    caption = (
        f"d = {first['parameters']:,}, {first['clients']} clients, {first['device']}; a plain copy moves "
        f"{size(fastest)} a second"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left", caption_style="dim")
    for name in ("", "cache", "µs an arrival", "must touch", "µs to copy", "ratio", "kept a client"):
        table.add_column(name, justify="left" if name in ("", "cache") else "right")
    for row in rows:
        table.add_row(
            row["algorithm"],
            row["cache"],
            f"{row['microseconds_per_arrival']:,.0f}",
            size(row["bytes_per_arrival"]),
            f"{row['copy_microseconds']:,.0f}",
            f"{row['copies']:.1f}",
            size(row["cache_bytes_per_client"]) if row["cache_bytes"] else "–",
        )
    return table


def deployments(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What `offbeat bench deploy` has measured: medians over the turns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "seconds", "updates", "updates/s", "MB down", "MB up", "accuracy"):
        table.add_column(name, justify="left" if not name else "right")
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(", ".join(str(row[name]) for name in ("mode", "model") if name in row), []).append(row)
    for label, found in groups.items():

        def middle(name: str, found: list[Mapping[str, Any]] = found) -> float:
            return float(statistics.median(row[name] for row in found))

        table.add_row(
            label,
            f"{middle('seconds'):.1f}",
            f"{middle('updates'):.0f}",
            f"{middle('updates_per_second'):.2f}",
            f"{middle('bytes_down') / 1e6:.2f}",
            f"{middle('bytes_up') / 1e6:.2f}",
            f"{statistics.median(row['accuracies'][-1]['accuracy'] for row in found):.3f}",
        )
    return table
