"""The comparison of a reproduction with its paper."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from offbeat.report.tables import spread
from offbeat.reproductions.results import Results

ACCURACIES = {"accuracy": "final", "accuracy_last10": "last 10", "best_accuracy": "best"}
"""The accuracies of a run: of the last evaluation, the mean of the last ten, and the best of all."""
HEADINGS = {"target_rounds": "rounds", "target_seconds": "time (s)", "target_bytes_up": "MB up",
            "staleness_max": "maximum delay", "staleness_mean": "mean delay", "accuracy": "accuracy (%)",
            "accuracy_last10": "accuracy, last 10 (%)", "best_accuracy": "best accuracy (%)",
            "train_loss": "training loss"}  # fmt: skip
SCALES = {"target_bytes_up": 1e-6} | dict.fromkeys(ACCURACIES, 100.0)


@dataclass(frozen=True)
class Entry:
    """A figure of the paper, and ours."""

    cell: str
    figure: str
    paper: float | None
    ours: Sequence[float]
    """One per seed, ∞ for a target that was not reached; none if the cell was not run."""
    diverged: int = 0
    """How many runs diverged."""
    scale: float = 1.0
    run: bool = False
    """Whether there are runs, though the figure may not be known."""

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in the figure's unit; None where either is missing."""
        if self.paper is None or not self.ours or math.inf in (self.paper, *self.ours):
            return None
        return self.scale * (statistics.fmean(self.ours) - self.paper)


def heading(figure: str) -> str:
    """Return the words for a figure, with its unit."""
    name, _, target = figure.partition("@")
    words = HEADINGS.get(name, name)
    return f"{words} to {100 * float(target):g} %" if target else words


def scale(figure: str) -> float:
    """Return the factor by which a figure is multiplied when it is shown."""
    return SCALES.get(figure.partition("@")[0], 1.0)


def entries(paper: Mapping[str, Any], results: Results) -> Iterator[Entry]:
    """Yield the comparison of each cell.

    Args:
        paper: What the paper prints, from `paper.toml`.
        results: Our runs.
    """
    for figure, rows in tables(paper).items():
        for row, printed in rows.items():
            for place, column in enumerate(paper["columns"]):
                yield compare_cell(results, f"{row} {column}", figure, printed[place] if printed else None)
    for label, printed in paper.get("rounds_to", {}).items():
        if label != "accuracies":
            yield from (compare_cell(results, label, *pair) for pair in zip(rounds_to(paper), printed, strict=True))
    values = paper.get("values", {})
    for label, printed in values.items():
        if label != "names":
            yield from (compare_cell(results, label, *pair) for pair in zip(values["names"], printed, strict=True))
    ratios = paper.get("ratios", {})
    for figure, printed in ratios.items():
        if figure != "of":
            one, other = ratios["of"]
            quotients = paired(results.values(one, figure), results.values(other, figure), ratio)
            yield Entry(f"{one} / {other}", figure, printed, quotients)


def tables(paper: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the tables that a paper prints in rows and columns, by figure: `rows`, and those named after a figure."""
    first = {paper["figure"]: paper["rows"]} if "rows" in paper else {}
    return first | {figure: paper[figure] for figure in HEADINGS if figure in paper}


def rounds_to(paper: Mapping[str, Any]) -> list[str]:
    """Return the figures of the table `rounds_to`, one per accuracy."""
    return [f"target_rounds@{accuracy:g}" for accuracy in paper.get("rounds_to", {}).get("accuracies", [])]


def compare_cell(results: Results, label: str, figure: str, printed: float | None) -> Entry:
    """Return the comparison of one cell."""
    known = None if printed is None or math.isnan(printed) else printed
    ours = list(results.values(label, figure).values())
    return Entry(label, figure, known, ours, results.diverged(label), scale(figure), label in results.labels)


def paired(one: Mapping[int, float], other: Mapping[int, float], compare: Any) -> list[float]:
    """Compare the runs of two cells seed by seed, or their means if they have no seed in common."""
    seeds = [seed for seed in one if seed in other]
    if seeds or not (one and other):
        return [compare(one[seed], other[seed]) for seed in seeds]
    return [compare(statistics.fmean(one.values()), statistics.fmean(other.values()))]


def ratio(one: float, other: float) -> float:
    """Return the quotient of two costs; not a number if neither is known."""
    return one / other if other else math.nan


def shown(values: Sequence[float], factor: float = 1.0, places: int | None = None) -> str:
    """Format values as mean ± standard deviation; say how many runs never reached a target.

    Args:
        values: One value per seed.
        factor: What they are multiplied by.
        places: Decimal places; by default as many as three digits need.
    """
    known = [factor * value for value in values if math.isfinite(value)]
    if len(known) < len(values):
        return f"{len(known)} of {len(values)} runs" if known else "never"
    mean = abs(statistics.fmean(known))
    if places is None:
        places = max(0, 2 - math.floor(math.log10(mean))) if mean else 0
    return spread(known, f"{{:.{places}f}}")


def ours(entry: Entry) -> str:
    """Format our figure of a cell."""
    if entry.ours:
        failed = f" ({entry.diverged} diverged)" if entry.diverged else ""
        return shown(entry.ours, entry.scale, 1 if entry.scale == 100 else None) + failed
    return "—" if entry.run else "diverged" if entry.diverged else "not run"


def printed(entry: Entry) -> str:
    """Format the paper's figure of a cell."""
    if entry.paper is None:
        return "—"
    if math.isinf(entry.paper):
        return "never"
    return f"{entry.scale * entry.paper:.1f}" if entry.scale == 100 else f"{entry.scale * entry.paper:.4g}"


def comparison(paper: Mapping[str, Any], results: Results) -> Table:
    """Return the comparison with the paper as a table for a terminal."""
    found = list(entries(paper, results))
    figures = list(dict.fromkeys(each.figure for each in found))
    caption = "; ".join(map(heading, figures)) + "; ± over the seeds; n runs; ours minus the paper's"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left", caption_style="dim")
    table.add_column("", style="bold", overflow="fold", min_width=8)
    for column in ("paper", "ours", "n", "difference"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in found:
        cell = each.cell if len(figures) == 1 else f"{each.cell}, {heading(each.figure)}"
        table.add_row(escape(cell), printed(each), ours(each), str(len(each.ours) or ""), difference(each))
    return table


def difference(entry: Entry) -> str:
    """Format the difference of a cell; an empty text where there is none."""
    if entry.difference is None:
        return ""
    return f"{entry.difference:+.1f}" if entry.scale == 100 else f"{entry.difference:+.3g}"
