"""Benchmark results as tables for a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from offbeat.report.tables import size


def training_rates(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the results of `offbeat bench train`."""
    first = rows[0]
    reasons = dict.fromkeys(f"{row['executor']} does not apply: {row['refused']}" for row in rows if "refused" in row)
    lines = [f"client steps per second for n clients at once, {first['device']}, {first['precision']}", *reasons]
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, caption="\n".join(lines),
        caption_justify="left", caption_style="dim",
    )  # fmt: skip
    for name, side in (("model", "left"), ("batch", "right"), ("n", "right"), ("executor", "left")):
        table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    for name in ("median", "min", "max", "setup"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        case = [row["model"], str(row["batch"]), str(row["group"]), row["executor"]]
        if "refused" in row:
            table.add_row(*case, "–")
            continue
        figures = [f"{row[name]:,.0f}" for name in ("client_steps_per_second", "least", "most")]
        table.add_row(*case, *figures, f"{row['setup_seconds']:.1f} s")
    return table


def engine_scale(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the results of `offbeat bench engine` for several numbers of clients."""
    first = rows[0]
    setting = f"{first['concurrency']:,} busy, d = {first['parameters']:,}"
    caption = f"{first['algorithm']}, {first['arrivals']:,} arrivals, {setting}"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left", caption_style="dim")
    for name in ("clients", "arrivals/s", "peak MB", "extra bytes/client"):
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
    """Return the results of `offbeat bench server`."""
    first = rows[0]
    fastest = max(row["copy_bytes_per_second"] for row in rows)
    caption = (
        f"d = {first['parameters']:,}, {first['clients']} clients, {first['device']}; a plain copy moves "
        f"{size(fastest)} per second"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left", caption_style="dim")
    for name in ("", "cache", "µs/arrival", "bytes touched", "µs to copy", "ratio", "cache/client"):
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
    """Return the results of `offbeat bench deploy`: medians over the repetitions."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "seconds", "updates", "updates/s", "MB down", "MB up", "accuracy"):
        table.add_column(name, justify="left" if not name else "right")
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(", ".join(str(row[name]) for name in ("mode", "model") if name in row), []).append(row)
    for label, group in groups.items():

        def median(name: str, group: list[Mapping[str, Any]] = group) -> float:
            return float(statistics.median(row[name] for row in group))

        table.add_row(
            label,
            f"{median('seconds'):.1f}",
            f"{median('updates'):.0f}",
            f"{median('updates_per_second'):.2f}",
            f"{median('bytes_down') / 1e6:.2f}",
            f"{median('bytes_up') / 1e6:.2f}",
            f"{statistics.median(row['accuracies'][-1]['accuracy'] for row in group):.3f}",
        )
    return table
