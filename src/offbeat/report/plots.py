"""Pictures of runs.  Every function returns a matplotlib figure that can be changed before it is saved."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")  # Okabe and Ito
INSIDE = 10  # curves whose names find room inside the axes
AXES = {"virtual_seconds": "virtual time (s)", "version": "round", "bytes_up": "bytes up"}


def metrics(folder: pathlib.Path) -> list[dict[str, Any]]:
    """The evaluations of a run folder; a last line that is still being written is left out."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def accuracy(
    runs: Mapping[str, Sequence[pathlib.Path]], over: str = "virtual_seconds", target: float | None = None
) -> Figure:
    """Test accuracy of several experiments, with the band between the lowest and the highest seed."""
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


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure  # not pyplot: no global state, no display needed

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set_prop_cycle(color=COLOURS)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
