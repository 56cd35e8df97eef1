"""Draw the figures of docs/reproductions.md."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from offbeat.report.figure_style import COLORS
from offbeat.report.plots import draw_mean
from offbeat.reproductions.comparison import heading
from offbeat.reproductions.results import Results, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def picture(paper: Mapping[str, Any], results: Results) -> Figure:
    """Draw the figure of a reproduction."""
    return _curves(paper, results) if "curves" in paper else _dots(paper["values"], results)


def _dots(values: Mapping[str, Any], results: Results) -> Figure:
    """Draw the paper's numbers and ours, one panel per figure."""
    from matplotlib.figure import Figure

    labels = [label for label in values if label != "names"]
    figure = Figure(figsize=(8.4, 0.6 + 0.32 * len(labels)), layout="tight")
    axes = figure.subplots(1, len(values["names"]), sharey=True, squeeze=False)
    for place, (axis, name) in enumerate(zip(axes[0], values["names"], strict=True)):
        for height, label in enumerate(labels):
            if ours := [value for value in results.values(label, name).values() if math.isfinite(value)]:
                axis.plot([min(ours), max(ours)], [height, height], color=COLORS[0], linewidth=1.2)
                axis.plot(statistics.fmean(ours), height, "o", color=COLORS[0], label="" if height else "ours")
            axis.plot(values[label][place], height, "x", color=COLORS[3], label="" if height else "paper")
        axis.set(xlabel=f"{heading(name)} (versions)", xlim=(0, None), yticks=range(len(labels)), yticklabels=labels)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].invert_yaxis()
    axes[0][0].legend(frameon=False, fontsize=8)
    return figure


def _curves(paper: Mapping[str, Any], results: Results) -> Figure:
    """Draw accuracy over rounds or time, one panel per entry of `curves`: the mean over the seeds and their range."""
    from matplotlib.figure import Figure

    runs = results.labels
    panels = [panel for panel in paper["curves"] if any(within(panel, label) for label in runs)]
    names = dict.fromkeys(name for panel in panels for label in runs if (name := within(panel, label)))
    looks = dict(zip(names, itertools.product(("-", "--"), COLORS), strict=False))
    time = paper.get("over") == "virtual_seconds"
    figure = Figure(figsize=(3.6 * len(panels) + 2.2, 3.2), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        for label, name in ((label, within(panel, label)) for label in runs):
            if name:
                style, color = looks[name]
                draw_mean(axis, [curve(run, time) for run in runs[label]], name, linestyle=style, color=color,
                          linewidth=1.4)  # fmt: skip
        axis.set(title=panel, xlabel="virtual time (s)" if time else "round")
        axis.spines[["top", "right"]].set_visible(False)
    handles = {name: line for axis in axes[0] for line, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, frameon=False, loc="outside right center", fontsize=8)
    axes[0][0].set_ylabel("test accuracy (%)")
    return figure


def curve(run: Run, time: bool) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the rounds or times of a run's evaluations and the accuracies there, up to its final one."""
    points: Sequence[Sequence[float]] = [*run["curve"], [run["rounds"], run["virtual_seconds"], run["accuracy"]]]
    return np.array([point[1 if time else 0] for point in points]), np.array([100 * point[2] for point in points])


def within(panel: str, label: str) -> str:
    """Return the rest of a label in a panel of one row or column, or "" if the label belongs to another panel."""
    if not panel:
        return label
    if label.startswith(f"{panel} "):
        return label.removeprefix(f"{panel} ")
    return label.removesuffix(f" {panel}") if label.endswith(f" {panel}") else ""
