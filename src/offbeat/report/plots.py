"""Figures of runs. Every function returns a matplotlib figure that can be changed before it is saved.

Figures of a single run take a record from `offbeat.report.read.read(folder)` and fit a column of a paper: 3.4 inches
wide, with text of 8 points; `offbeat.report.figure_style.resized` changes the width.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offbeat.report import series
from offbeat.report.figure_style import (
    COLORS,
    COLUMN,
    PAGE,
    TEXT,
    byte_ticks,
    new_figure,
    outer_legend,
    series_style,
    whole_numbers,
)
from offbeat.report.paired import metric_of
from offbeat.report.read import Record, read

if TYPE_CHECKING:
    from offbeat.report.figure import InlineFigure as Figure

AXES = {"virtual_seconds": "virtual time (s)", "version": "round", "bytes_up": "uploads"}
HEIGHT = 2.4  # inches of most figures of a run


def curves(
    runs: Mapping[str, Sequence[pathlib.Path | Record]],
    over: str = "virtual_seconds",
    target: float | None = None,
    metric: str | None = None,
    width: float = PAGE,
) -> Figure:
    """Draw a metric of several experiments, with a band from the lowest to the highest seed.

    A seed that ends earlier than others keeps its final value, so that a curve ends at the mean of the final values.
    Experiments without the metric are left out.

    Args:
        runs: Run folders or records by label; those of one label are seeds of one experiment.
        over: The horizontal axis: virtual_seconds, version or bytes_up.
        target: Value to mark; a fraction for percentages.
        metric: Name of the metric; the main one of the first run by default.
        width: Width in inches.
    """
    figure, axes = new_figure(width, (0.6 if width > COLUMN else 0.75) * width + 0.04 * len(runs))
    found = {label: [run if isinstance(run, Record) else read(run) for run in group] for label, group in runs.items()}
    every = [record for group in found.values() for record in group]
    info = metric_of(every, metric)
    seeds, few = 1, len(found) <= 6
    for place, (label, group) in enumerate(found.items()):
        known = [[line for line in record.metrics if line.get(info.name) is not None] for record in group]
        lines = [each for each in known if each]
        if not lines:
            continue
        seeds = max(seeds, len(lines))
        # The quality of a model holds until the next evaluation: a step function, not a slope.
        steps = [
            (np.array([line[over] for line in each]), np.array([line[info.name] for line in each])) for each in lines
        ]
        style = series_style(place) | {"markevery": (0.02 * (place % 5), 0.1), "markersize": 3}
        draw_mean(axes, [(at, info.scale * values) for at, values in steps], label, 0.15 if few else 0.07, **style)
    if target is not None:
        axes.axhline(info.scale * target, color="0.5", linewidth=0.8, linestyle=":")
    axes.set(xlabel=AXES[over], ylabel=f"test {info.title}", xlim=(0, None))
    if info.unit == "%":
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, 0), min(high, 100))
    if over == "version":
        whole_numbers(axes.xaxis)
    elif over == "bytes_up":
        byte_ticks(axes.xaxis)
    outer_legend(figure, f"mean of {seeds} seeds; band: lowest to highest" if seeds > 1 else None)
    return figure


def draw_mean(
    axes: Any, curves: Sequence[tuple[NDArray[Any], NDArray[Any]]], label: str, shade: float = 0.15, **style: Any
) -> None:
    """Draw the mean of step functions, and a band from the lowest to the highest of them.

    Args:
        axes: Where to draw.
        curves: The horizontal places of each curve and its values there; it keeps its last value to the end.
        label: Its name in the legend.
        shade: Opacity of the band.
        style: Further options of the line, such as those of `figure_style.series_style`.
    """
    grid = np.unique(np.concatenate([at for at, _ in curves]))
    values = np.stack([of[np.searchsorted(at, grid, side="right") - 1] for at, of in curves])
    (line,) = axes.plot(grid, values.mean(axis=0), label=label, drawstyle="steps-post", **{"linewidth": 1.3} | style)
    if len(curves) > 1:
        axes.fill_between(
            grid, values.min(axis=0), values.max(axis=0), step="post", alpha=shade, color=line.get_color(), linewidth=0
        )


def partition(counts: NDArray[np.int64]) -> Figure:
    """Draw the number of examples per client and label."""
    clients, classes = counts.shape
    figure, axes = new_figure(min(12.0, 3.0 + 0.09 * clients), 1.6 + 0.22 * min(classes, 40))
    whole_numbers(axes.xaxis, axes.yaxis)
    shown = np.where(counts == 0, np.nan, counts.astype(float))
    image = axes.imshow(shown.T, aspect="auto", interpolation="nearest", cmap="viridis", origin="lower")
    axes.set(xlabel="client", ylabel="label")
    axes.set_title(f"{counts.sum():,} examples, {clients} clients", fontsize=TEXT)
    if classes <= 20:
        axes.set_yticks(range(classes))
    _scale(figure, image, "examples")
    return figure


def staleness(record: Record) -> Figure:
    """Draw the distribution of staleness."""
    figure, axes = new_figure(COLUMN, HEIGHT)
    tau, counts = series.staleness(record.log())
    axes.bar(tau, counts, width=0.9 * (tau[1] - tau[0] if len(tau) > 1 else 1), align="edge")
    axes.set(xlabel="staleness τ (versions)", ylabel="updates")
    whole_numbers(axes.xaxis, axes.yaxis)
    return figure


def staleness_over_time(record: Record) -> Figure:
    """Draw the mean and the largest staleness of arriving updates over time."""
    figure, axes = new_figure(COLUMN, HEIGHT)
    time, mean, most = series.staleness_over_time(record.log())
    there = ~np.isnan(mean)
    axes.plot(time[there], mean[there], label="mean")
    axes.plot(time[there], most[there], label="largest", linewidth=0.7)
    axes.set(xlabel=AXES["virtual_seconds"], ylabel="staleness τ (versions)")
    outer_legend(figure)
    return figure


def concurrency(record: Record) -> Figure:
    """Draw the number of busy clients and of updates that wait for the next server step."""
    figure, axes = new_figure(COLUMN, HEIGHT)
    log = record.log()
    axes.plot(*series.concurrency(log), label="busy clients")
    axes.plot(*series.waiting(log), label="waiting updates (max)", linewidth=0.7, drawstyle="steps-mid")
    axes.set(xlabel=AXES["virtual_seconds"], ylabel="number", ylim=(0, None))
    whole_numbers(axes.yaxis)
    outer_legend(figure)
    return figure


def participation(record: Record) -> Figure:
    """Draw each client's share of the updates against its share of the data."""
    figure, axes = new_figure(COLUMN, HEIGHT)
    data, updates, who = series.participation(record.log(), record.clients, record.sizes)
    if record.sizes is None:
        axes.plot(who, 100 * updates, ".", markersize=4, alpha=0.6, markeredgewidth=0)
        axes.set(xlabel="client", ylabel="share of the updates (%)")
        return figure
    axes.plot(100 * data, 100 * updates, ".", markersize=4, alpha=0.6, markeredgewidth=0)
    most = 100 * max(data.max(), updates.max())
    axes.plot([0, most], [0, most], color="0.5", linewidth=0.8, linestyle="--")
    axes.set(xlabel="share of the data (%)", ylabel="share of the updates (%)")
    return figure


def timeline(record: Record) -> Figure:
    """Draw jobs as bars, darker for staler updates; a dashed bar with a cross was not aggregated."""
    figure, axes = new_figure(COLUMN, 3.4)
    clients, jobs = series.sample_jobs(record.log())
    place = {int(client): at for at, client in enumerate(clients)}
    tau = jobs["staleness"] / max(1, int(jobs["staleness"].max(initial=0)))
    for job, wasted, shade in zip(jobs, ~series.aggregated(jobs), tau, strict=True):
        at, width = place[int(job["client"])], job["time"] - job["sent"]
        style = {"facecolor": "none", "edgecolor": COLORS[3], "linestyle": "--"} if wasted else {
            "facecolor": str(0.85 - 0.75 * shade), "edgecolor": "none"}  # fmt: skip
        axes.barh(at, width, left=job["sent"], height=0.7, linewidth=0.6, **style)
        if wasted:
            axes.plot(job["time"], at, "x", color=COLORS[3], markersize=3)
    some = np.linspace(0, len(clients) - 1, min(len(clients), 12)).astype(int)
    axes.set(xlabel=AXES["virtual_seconds"], ylabel="client", yticks=some, yticklabels=clients[some])
    return figure


def at_work(record: Record) -> Figure:
    """Draw the share of the time that each client, or group of clients, was busy."""
    figure, axes = new_figure(COLUMN, 3.0)
    cuts, busy = series.at_work(record.log(), record.clients)
    extent = (cuts[0], cuts[-1], 0, record.clients)
    image = axes.imshow(busy, aspect="auto", origin="lower", extent=extent, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel=AXES["virtual_seconds"], ylabel="client")
    _scale(figure, image, "share of the time busy")
    return figure


def ages(record: Record) -> Figure:
    """Draw the age of the cached updates."""
    figure, axes = new_figure(COLUMN, HEIGHT)
    found = series.ages(record.log(), record.clients)
    axes.plot(found.version, found.mean, label="mean")
    axes.plot(found.version, found.most, label="oldest", linewidth=0.7)
    axes.set(xlabel=AXES["version"], ylabel="age (versions)")
    whole_numbers(axes.xaxis)
    outer_legend(figure)
    return figure


def durations(record: Record) -> Figure:
    """Draw the distribution of job durations."""
    figure, axes = new_figure(COLUMN, HEIGHT)
    cuts, counts = series.durations(record.log())
    axes.stairs(counts, cuts, fill=True)
    axes.set(xlabel="duration (s)", ylabel="jobs")
    whole_numbers(axes.yaxis)
    if cuts[0] > 0:
        axes.set_xscale("log")
    return figure


def plan(record: Record, device: int = 0) -> Figure:
    """Draw FedLuck's φ of a device over local steps and compression rate, and the device's choice."""
    figure, axes = new_figure(COLUMN, HEIGHT)
    k, delta, alpha, beta = record.setting["plan"][device]
    ks, deltas = np.arange(2.0, 61.0)[:, None], np.linspace(0.01, 1, 100)[None, :]
    values = series.log_phi(record.setting, ks, deltas, alpha, beta)
    image = axes.contourf(deltas[0], ks[:, 0], values, levels=20, cmap="Blues_r")
    axes.plot(delta, k, "D", color=COLORS[3], markersize=5, clip_on=False)
    axes.set(xlabel="compression rate δ", ylabel="local steps k")
    axes.set_title(f"device {device}: k = {k}, δ = {delta:g}", fontsize=8)
    _scale(figure, image, "log₁₀ φ")
    return figure


def network(record: Record) -> Figure:
    """Draw the network of a decentralized run."""
    figure, axes = new_figure(COLUMN, 3.2)
    found = record.setting["network"]
    turn = 2 * np.pi * np.arange(found["nodes"]) / found["nodes"]
    x, y = np.cos(turn), np.sin(turn)
    for one, other in found["edges"]:
        axes.plot(x[[one, other]], y[[one, other]], color="0.6", linewidth=0.5)
    axes.plot(x, y, "o", markersize=3)
    axes.set(aspect="equal")
    axes.set_title(f"ρ = {found['rho']:.3g}", fontsize=8)
    axes.axis("off")
    return figure


def consensus(record: Record) -> Figure:
    """Draw the distance of the clients' models from their mean."""
    figure, axes = new_figure(COLUMN, HEIGHT)
    axes.plot([line["version"] for line in record.metrics], [line["consensus"] for line in record.metrics])
    axes.set(xlabel=AXES["version"], ylabel="distance from the mean", ylim=(0, None))
    whole_numbers(axes.xaxis)
    return figure


def epsilon(record: Record) -> Figure:
    """Draw the privacy loss ε of the client that contributed most often."""
    figure, axes = new_figure(COLUMN, HEIGHT)
    axes.plot([line["version"] for line in record.metrics], [line.get("epsilon") for line in record.metrics])
    axes.set(xlabel=AXES["version"], ylabel="ε", ylim=(0, None))
    whole_numbers(axes.xaxis)
    return figure


def gradients(record: Record) -> Figure:
    """Draw ‖∇f(x)‖² and the heterogeneity of the clients' gradients."""
    figure, axes = new_figure(COLUMN, HEIGHT)
    versions = [line["version"] for line in record.metrics]
    for name, label in (("gradient_square", "‖∇f‖²"), ("heterogeneity", "σ_g²")):
        axes.plot(versions, [line.get(name) for line in record.metrics], label=label)
    axes.set(xlabel=AXES["version"], yscale="log")
    whole_numbers(axes.xaxis)
    outer_legend(figure)
    return figure


def figures_of(record: Record) -> dict[str, partial[Figure]]:
    """Return the functions that draw the figures for which a run has data, by name."""
    some: list[Callable[[Record], Figure]] = []
    if len(record.log()):
        some += [staleness, staleness_over_time, concurrency, participation, timeline, at_work, durations]
        some += [ages] if record.has_cache else []
    some += [network] if "network" in record.setting else []
    first = record.metrics[0] if record.metrics else {}
    named = (("consensus", consensus), ("epsilon", epsilon), ("heterogeneity", gradients))
    some += [draw for column, draw in named if column in first]
    found: dict[str, partial[Figure]] = {draw.__name__: partial(draw, record) for draw in some}
    if "partition" in record.setting:
        found["partition"] = partial(partition, np.array(record.setting["partition"]))
    devices = min(series.DEVICES, len(record.setting.get("plan", ())))
    return found | {f"plan {device}": partial(plan, record, device) for device in range(devices)}


def of_run(record: Record) -> dict[str, Figure]:
    """Return all figures for which a run has data, by name."""
    return {name.replace(" ", "-"): draw() for name, draw in figures_of(record).items()}


def _scale(figure: Figure, image: Any, label: str) -> None:
    bar = figure.colorbar(image, pad=0.02)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
