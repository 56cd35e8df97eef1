"""Pictures of runs.  Every function returns a matplotlib figure that can be changed before it is saved.

Those of one run take what `offbeat.report.read.read(folder)` gives, and fit a column of a paper: 3.4 inches, 8 points.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offbeat.fedluck_objective import phi
from offbeat.report import series
from offbeat.report.read import Record, lost, metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")  # Okabe and Ito
INSIDE = 10  # curves whose names find room inside the axes
AXES = {"virtual_seconds": "virtual time (s)", "version": "round", "bytes_up": "bytes up"}


def accuracy(
    runs: Mapping[str, Sequence[pathlib.Path]], over: str = "virtual_seconds", target: float | None = None
) -> Figure:
    """Test accuracy of several experiments, with the band between the lowest and the highest seed.

    `over` is one of virtual_seconds, version and bytes_up.
    """
    many = len(runs) > INSIDE
    figure, axes = _figure(10.5, max(4.2, 0.16 * len(runs))) if many else _figure(7.0, 4.2)
    for label, folders in runs.items():
        curves = [metrics(folder) for folder in folders]
        grid = np.unique(np.concatenate([[line[over] for line in curve] for curve in curves]))
        grid = grid[grid <= min(curve[-1][over] for curve in curves)]
        # A model stays in force until the next one is tested: a step function, not a slope.
        values = np.stack([_step(grid, curve, over) for curve in curves])
        (line,) = axes.plot(grid, 100 * values.mean(axis=0), label=label, linewidth=1.6, drawstyle="steps-post")
        if len(curves) > 1:
            axes.fill_between(
                grid, 100 * values.min(axis=0), 100 * values.max(axis=0),
                step="post", alpha=0.15, color=line.get_color(), linewidth=0,
            )  # fmt: skip
    if target is not None:
        axes.axhline(100 * target, color="0.5", linewidth=0.8, linestyle=":")
    axes.set(xlabel=AXES[over], ylabel="test accuracy (%)", xlim=(0, None), ylim=(0, 100))
    if many:
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
    else:
        axes.legend(frameon=False, loc="lower right")
    return figure


def _step(grid: NDArray[np.float64], curve: Sequence[Mapping[str, Any]], over: str) -> NDArray[np.float64]:
    at = np.array([line[over] for line in curve])
    return np.array([line["accuracy"] for line in curve])[np.searchsorted(at, grid, side="right") - 1]


def partition(counts: NDArray[np.int64]) -> Figure:
    """Who has how many examples of which label: one column a client."""
    clients, classes = counts.shape
    figure, axes = _figure(min(12.0, 3.0 + 0.09 * clients), 1.6 + 0.22 * min(classes, 40))
    shown = np.where(counts == 0, np.nan, counts.astype(float))
    image = axes.imshow(shown.T, aspect="auto", interpolation="nearest", cmap="viridis", origin="lower")
    axes.set(xlabel="client", ylabel="label", title=f"{counts.sum():,} examples, {clients} clients")
    if classes <= 20:
        axes.set_yticks(range(classes))
    figure.colorbar(image, label="examples", pad=0.02)
    return figure


def staleness(record: Record) -> Figure:
    """How many updates were how stale."""
    figure, axes = _column()
    tau, counts = series.staleness(record.log())
    axes.bar(tau, counts, width=0.9 * (tau[1] - tau[0] if len(tau) > 1 else 1), align="edge")
    axes.set(xlabel="staleness τ (versions)", ylabel="updates")
    return figure


def staleness_over_time(record: Record) -> Figure:
    """The mean and the largest staleness of what arrived."""
    figure, axes = _column()
    time, mean, most = series.staleness_over_time(record.log())
    there = ~np.isnan(mean)
    axes.plot(time[there], mean[there], label="mean")
    axes.plot(time[there], most[there], label="largest", linewidth=0.7)
    axes.set(xlabel=AXES["virtual_seconds"], ylabel="staleness τ")
    axes.legend(frameon=False, fontsize=7)
    return figure


def concurrency(record: Record) -> Figure:
    """How many clients were at work, and how many updates waited for the server's next step."""
    figure, axes = _column()
    log = record.log()
    axes.plot(*series.concurrency(log), label="clients at work")
    axes.plot(*series.waiting(log), label="updates waiting, at most", linewidth=0.7, drawstyle="steps-mid")
    axes.set(xlabel=AXES["virtual_seconds"], ylabel="number", ylim=(0, None))
    axes.legend(frameon=False, fontsize=7)
    return figure


def participation(record: Record) -> Figure:
    """Each client's part of the updates beside its part of the data."""
    figure, axes = _column()
    data, updates, who = series.participation(record.log(), record.clients, record.sizes)
    if record.sizes is None:
        axes.plot(who, 100 * updates, ".", markersize=4, alpha=0.6, markeredgewidth=0)
        axes.set(xlabel="client", ylabel="part of the updates (%)")
        return figure
    axes.plot(100 * data, 100 * updates, ".", markersize=4, alpha=0.6, markeredgewidth=0)
    most = 100 * max(data.max(), updates.max())
    axes.plot([0, most], [0, most], color="0.5", linewidth=0.8, linestyle="--")
    axes.set(xlabel="part of the data (%)", ylabel="part of the updates (%)")
    return figure


def timeline(record: Record) -> Figure:
    """Who trained when: a bar is a trip, darker the staler it was; dashed with a cross it came to nothing."""
    figure, axes = _column(height=3.4)
    clients, trips = series.trips(record.log())
    place = {int(client): at for at, client in enumerate(clients)}
    tau = trips["staleness"] / max(1, int(trips["staleness"].max(initial=0)))
    for trip, gone, shade in zip(trips, lost(trips), tau, strict=True):
        at, width = place[int(trip["client"])], trip["time"] - trip["sent"]
        look = {"facecolor": "none", "edgecolor": COLOURS[3], "linestyle": "--"} if gone else {
            "facecolor": str(0.85 - 0.75 * shade), "edgecolor": "none"}  # fmt: skip
        axes.barh(at, width, left=trip["sent"], height=0.7, linewidth=0.6, **look)
        if gone:
            axes.plot(trip["time"], at, "x", color=COLOURS[3], markersize=3)
    some = np.linspace(0, len(clients) - 1, min(len(clients), 12)).astype(int)
    axes.set(xlabel=AXES["virtual_seconds"], ylabel="client", yticks=some, yticklabels=clients[some])
    return figure


def at_work(record: Record) -> Figure:
    """The part of its time that each client, or group of clients, was at work."""
    figure, axes = _column(height=3.0)
    cuts, busy = series.at_work(record.log(), record.clients)
    extent = (cuts[0], cuts[-1], 0, record.clients)
    image = axes.imshow(busy, aspect="auto", origin="lower", extent=extent, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel=AXES["virtual_seconds"], ylabel="client")
    _scale(figure, image, "part of the time at work")
    return figure


def ages(record: Record) -> Figure:
    """How old what a memory holds is."""
    figure, axes = _column()
    found = series.ages(record.log(), record.clients)
    axes.plot(found.version, found.mean, label="mean")
    axes.plot(found.version, found.most, label="oldest", linewidth=0.7)
    axes.set(xlabel=AXES["version"], ylabel="age (versions)")
    axes.legend(frameon=False, fontsize=7)
    return figure


def durations(record: Record) -> Figure:
    """How long trips took."""
    figure, axes = _column()
    cuts, counts = series.durations(record.log())
    axes.stairs(counts, cuts, fill=True)
    axes.set(xlabel="trip (s)", ylabel="trips")
    if cuts[0] > 0:
        axes.set_xscale("log")
    return figure


def plan(record: Record, device: int = 0) -> Figure:
    """FedLuck's φ of a device over local steps and compression, and what it chose."""
    figure, axes = _column()
    k, delta, alpha, beta = record.setting["plan"][device]
    ks, deltas = np.arange(2.0, 61.0)[:, None], np.linspace(0.01, 1, 100)[None, :]
    values = np.log10(phi(ks, deltas, alpha, beta, record.setting["period"], record.setting["exponent"]))
    image = axes.contourf(deltas[0], ks[:, 0], values, levels=20, cmap="Blues_r")
    axes.plot(delta, k, "D", color=COLOURS[3], markersize=5, clip_on=False)
    axes.set(xlabel="compression rate δ", ylabel="local steps k")
    axes.set_title(f"device {device}: k = {k}, δ = {delta:g}", fontsize=8)
    _scale(figure, image, "log₁₀ φ")
    return figure


def network(record: Record) -> Figure:
    """Who talks to whom."""
    figure, axes = _column(height=3.2)
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
    """How far the clients' models were from their mean."""
    figure, axes = _column()
    axes.plot([line["version"] for line in record.metrics], [line["consensus"] for line in record.metrics])
    axes.set(xlabel=AXES["version"], ylabel="distance from the mean", ylim=(0, None))
    return figure


def epsilon(record: Record) -> Figure:
    """What the client that was heard most often has given away."""
    figure, axes = _column()
    axes.plot([line["version"] for line in record.metrics], [line.get("epsilon") for line in record.metrics])
    axes.set(xlabel=AXES["version"], ylabel="ε", ylim=(0, None))
    return figure


def of_run(record: Record) -> dict[str, Figure]:
    """All pictures that a run has something to show in, by name."""
    pictures: dict[str, Figure] = {}
    if len(record.log()):
        always = (staleness, staleness_over_time, concurrency, participation, timeline, at_work, durations)
        pictures |= {draw.__name__: draw(record) for draw in always}
        if record.remembers:
            pictures["ages"] = ages(record)
    if "partition" in record.setting:
        pictures["partition"] = partition(np.array(record.setting["partition"]))
    if "plan" in record.setting:
        pictures |= {
            f"plan-{device}": plan(record, device) for device in range(min(series.DEVICES, len(record.setting["plan"])))
        }
    if "network" in record.setting:
        pictures["network"] = network(record)
    if record.metrics and "consensus" in record.metrics[0]:
        pictures["consensus"] = consensus(record)
    if record.metrics and "epsilon" in record.metrics[0]:
        pictures["epsilon"] = epsilon(record)
    return pictures


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure  # not pyplot: no global state, no display needed

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set_prop_cycle(color=COLOURS)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _column(width: float = 3.4, height: float = 2.4) -> tuple[Figure, Any]:
    """A figure for a column of a paper."""
    figure, axes = _figure(width, height)
    figure.set_dpi(300)
    axes.tick_params(labelsize=7)
    for text in (axes.xaxis.label, axes.yaxis.label):
        text.set_fontsize(8)
    return figure, axes


def _scale(figure: Figure, image: Any, label: str) -> None:
    bar = figure.colorbar(image, pad=0.02)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
