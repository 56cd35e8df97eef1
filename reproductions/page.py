"""Generate docs/reproductions.md and its figures from paper.toml and results/: `python -m reproductions.page`."""

from __future__ import annotations

import itertools
import json
import math
import pathlib
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reproductions.collect import tables

from offbeat.report.plots import COLORS
from offbeat.report.tables import spread
from offbeat.runs.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent / "docs" / "reproductions.md"
IMAGES = HERE.parent / "docs" / "images"
# Headings of the figures, and the factors by which they are multiplied.
WORDS = {"target_rounds": ("rounds", 1), "target_seconds": ("time (s)", 1), "target_bytes_up": ("MB up", 1e-6),
         "staleness_max": ("maximum delay", 1), "staleness_mean": ("mean delay", 1), "accuracy": ("accuracy (%)", 100),
         "accuracy_last10": ("accuracy (%)", 100), "best_accuracy": ("best accuracy (%)", 100)}  # fmt: skip

HEAD = """\
# Reproducing the papers

Each table is one command; repeat an interrupted command to resume it. `python -m reproductions.page` generates this
page and its figures from the run folders (`reproductions/collect.py`) and the papers' numbers
(`reproductions/paper.toml`). A cell is **paper / ours**; ours is the mean ± standard deviation over the seeds.
"""

Runs = Mapping[str, Sequence[Mapping[str, Any]]]


def page() -> str:
    """Return the page."""
    return "\n".join([HEAD, *(_section(name, paper, found) for name, paper, found in sections()), _waiting()])


def _waiting() -> str:
    """Return the section of experiments without results."""
    files = tomllib.loads((HERE / "paper.toml").read_text(encoding="utf-8"))
    done = {name for name, _, _ in sections()}
    lines = [f"- {paper['title']}: `{_command(name)}`" for name, paper in files.items() if name not in done]
    return "\n".join(["## Not run yet\n", *lines]) + "\n" if lines else ""


def _command(name: str, changes: Mapping[str, Any] | None = None) -> str:
    sets = "".join(f" --set {key}={value}" for key, value in (changes or {}).items())
    return f"offbeat sweep reproductions/{name}.toml{sets} --out runs/{name}"


def _of_all(name: str, runs: Runs, changes: Mapping[str, Any]) -> str:
    """Return a note if only a part of a table was run."""
    table = tables(name)
    cells = {cell.label for cell in Sweep.plan(table, [], []).cells}
    parts = [f"{len(runs)} of {len(cells)} cells"] if len(runs) < len(cells) else []
    if "rounds" in changes:
        parts.append(f"{changes['rounds']:,} of {table['rounds']:,} rounds")
    return f"**Partial: {', '.join(parts)}.** " if parts else ""


def sections() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield the name, the paper's numbers and our results of each experiment with results."""
    for name, paper in tomllib.loads((HERE / "paper.toml").read_text(encoding="utf-8")).items():
        file = HERE / "results" / f"{name}.json"
        if file.is_file():
            yield name, paper, json.loads(file.read_text(encoding="utf-8"))


def by_label(found: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Group the runs of a result by their label."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for run in found["runs"]:
        runs.setdefault(run["label"], []).append(run)
    return runs


def _section(name: str, paper: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    runs = by_label(found)
    seeds = max(len(group) for group in runs.values())
    where = "; ".join(found["machines"])
    counted = f"{seeds} seeds" if seeds > 1 else "one seed"
    made = f"{len(found['runs'])} runs, {counted}, {_duration(found['seconds'])} on {where}"
    changes = found.get("set", {})
    parts = [f"## {paper['title']}\n", f"`{_command(name, changes)}`\n"]
    parts.append(f"{_of_all(name, runs, changes)}{made}, collected at commit {found['commit']}.\n")
    if "rows" in paper:
        parts.append(_table(paper, runs, found.get("diverged", [])))
        parts += [] if "rounds" in changes else _differences(paper, runs)  # fewer rounds cannot be compared
    if "ratios" in paper:
        parts.append(_ratios(paper["ratios"], runs))
    if "values" in paper:
        parts.append(_values(paper["values"], runs))
    parts += [paper["notes"].strip() + "\n", f"![{paper['title']}](images/{name}.png)\n"]
    return "\n".join(parts)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _table(paper: Mapping[str, Any], runs: Runs, diverged: Sequence[str]) -> str:
    lines = ["| | " + " | ".join(paper["columns"]) + " |", "|---" * (1 + len(paper["columns"])) + "|"]
    for row, printed in paper["rows"].items():
        cells = []
        for place, column in enumerate(paper["columns"]):
            made, otherwise = runs.get(f"{row} {column}"), "diverged" if f"{row} {column}" in diverged else "not run"
            ours = spread([run[paper["figure"]] for run in made], scale=100) if made else otherwise
            cells.append(f"{_known(printed[place], 100, '.1f')} / {ours}" if printed else ours)
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _differences(paper: Mapping[str, Any], runs: Runs) -> list[str]:
    """Return the differences between our means and the paper's figures, in points."""
    gaps = _gaps(paper, runs, paper["figure"])
    if not gaps:
        return []
    where = max(gaps, key=lambda name: abs(gaps[name]))
    within = sum(abs(gap) <= 1 for gap in gaps.values())
    best = statistics.fmean(_gaps(paper, runs, "best_accuracy").values())
    return [
        f"Ours minus the paper's: {statistics.fmean(gaps.values()):+.2f} points on average; {within} of {len(gaps)} "
        f"cells are within one point; the largest difference is {where}: {gaps[where]:+.1f}. With the best evaluation "
        f"of each run instead, the average is {best:+.2f}.\n"
    ]


def _gaps(paper: Mapping[str, Any], runs: Runs, figure: str) -> dict[str, float]:
    return {
        f"{row}, {column}": 100 * (statistics.fmean(run[figure] for run in runs[f"{row} {column}"]) - printed[place])
        for row, printed in paper["rows"].items()
        for place, column in enumerate(paper["columns"] if printed else [])
        if not math.isnan(printed[place]) and f"{row} {column}" in runs
    }


def _ratios(ratios: Mapping[str, Any], runs: Runs) -> str:
    """Return a table of the ratios of two variants, seed by seed."""
    one, other = ratios["of"]
    lines = [f"| {one} / {other} | paper | ours | {one} | {other} |", "|---|---|---|---|---|"]
    for name, printed in ratios.items():
        if name != "of":
            first, second = ([run[name] for run in runs[label]] for label in (one, other))
            quotients = [a / b for a, b in zip(first, second, strict=True)]
            cells = [_plain(values) for values in (quotients, first, second)]
            lines.append(f"| {WORDS[name][0]} | {printed:.3g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _values(values: Mapping[str, Any], runs: Runs) -> str:
    """Return a table with several figures per variant."""
    names = values["names"]
    lines = ["| | " + " | ".join(WORDS[name][0] for name in names) + " |", "|---" * (1 + len(names)) + "|"]
    for label, printed in values.items():
        if label != "names":
            ours = [_plain([run[name] for run in runs[label]], WORDS[name][1]) for name in names]
            scales = [WORDS[name][1] for name in names]
            cells = [f"{_known(*pair)} / {own}" for *pair, own in zip(printed, scales, ours, strict=True)]
            if all(math.isnan(p) for row in values.values() for p in row if not isinstance(p, str)):
                cells = ours
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _known(printed: float, scale: float = 1, form: str = "g") -> str:
    return "—" if math.isnan(printed) else f"{scale * printed:{form}}"


def _plain(values: Sequence[float | None], scale: float = 1) -> str:
    known = [scale * value for value in values if value is not None]
    if len(known) < len(values):
        return f"{len(known)} of {len(values)} runs" if known else "never"
    mean = statistics.fmean(known)
    places = 2 - math.floor(math.log10(abs(mean))) if mean else 0  # three digits of the mean
    return spread(known, f"{{:.{max(0, places)}f}}")


def picture(paper: Mapping[str, Any], runs: Runs) -> Figure:
    """Draw the figure of an experiment."""
    return _curves(paper, runs) if "curves" in paper else _dots(paper["values"], runs)


def _dots(values: Mapping[str, Any], runs: Runs) -> Figure:
    """Draw the paper's numbers and ours, one panel per figure."""
    from matplotlib import pyplot as plt

    labels = [label for label in values if label != "names"]
    figure, axes = plt.subplots(1, len(values["names"]), figsize=(8.4, 0.6 + 0.32 * len(labels)), sharey=True)
    for place, (axis, name) in enumerate(zip(axes, values["names"], strict=True)):
        for height, label in enumerate(labels):
            ours = [run[name] for run in runs[label]]
            axis.plot([min(ours), max(ours)], [height, height], color=COLORS[0], linewidth=1.2)
            axis.plot(statistics.fmean(ours), height, "o", color=COLORS[0], label="" if height else "ours")
            axis.plot(values[label][place], height, "x", color=COLORS[3], label="" if height else "paper")
        axis.set(xlabel=f"{WORDS[name][0]} (versions)", xlim=(0, None), yticks=range(len(labels)), yticklabels=labels)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    axes[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    return figure


def _curves(paper: Mapping[str, Any], runs: Runs) -> Figure:
    """Draw accuracy over rounds or time, one panel per entry of `curves`: the mean over the seeds and their range."""
    from matplotlib import pyplot as plt

    panels = [panel for panel in paper["curves"] if any(_within(panel, label) for label in runs)]
    names = dict.fromkeys(name for panel in panels for label in runs if (name := _within(panel, label)))
    looks = dict(zip(names, itertools.product(("-", "--"), COLORS), strict=False))
    time = paper.get("over") == "virtual_seconds"
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.6 * len(panels) + 2.2, 3.2), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, panel in zip(axes[0], panels, strict=True):
        shown = {label: _within(panel, label) for label in runs if _within(panel, label)}
        for label, name in shown.items():
            line, color = looks[name]
            curves = [run["curve"] for run in runs[label]]
            points = list(zip(*curves, strict=False))
            at = [statistics.fmean(p[1 if time else 0] for p in point) for point in points]
            axis.plot(at, [100 * statistics.fmean(p[2] for p in point) for point in points], line, color=color,
                      label=name, linewidth=1.4)  # fmt: skip
            low, high = ([100 * pick(p[2] for p in point) for point in points] for pick in (min, max))
            axis.fill_between(at, low, high, color=color, alpha=0.12, linewidth=0)
        axis.set(title=panel, xlabel="virtual time (s)" if time else "round")
        axis.spines[["top", "right"]].set_visible(False)
    handles = {name: line for axis in axes[0] for line, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, frameon=False, loc="outside right center", fontsize=8)
    axes[0][0].set_ylabel("test accuracy (%)")
    return figure


def _within(panel: str, label: str) -> str:
    """Return the rest of a label in a panel of one row or column, or "" if the label belongs to another panel."""
    if not panel:
        return label
    if label.startswith(f"{panel} "):
        return label.removeprefix(f"{panel} ")
    return label.removesuffix(f" {panel}") if label.endswith(f" {panel}") else ""


def main() -> None:
    """Write the page and its figures."""
    PAGE.write_text(page(), encoding="utf-8")
    for name, paper, found in sections():
        picture(paper, by_label(found)).savefig(IMAGES / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
