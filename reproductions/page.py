"""Make docs/reproductions.md and its pictures of paper.toml and results/: `python reproductions/page.py`.  Nothing on
the page is typed by hand but what paper.toml says."""

from __future__ import annotations

import json
import math
import pathlib
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from offbeat.report.plots import COLOURS
from offbeat.report.tables import spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent / "docs" / "reproductions.md"
IMAGES = HERE.parent / "docs" / "images"
WORDS = {"target_rounds": "rounds", "target_seconds": "time", "staleness_max": "largest delay",
         "staleness_mean": "mean delay"}  # fmt: skip

HEAD = """\
# The papers' tables, made again

Every table here is one command; a run that is interrupted goes on when the command is given again. This page and its
pictures are made by `python reproductions/page.py` of what the run folders said (`reproductions/collect.py`) and what
the papers print (`reproductions/paper.toml`). A cell is **paper / ours**, ours being the mean ± standard deviation over
the seeds.
"""

Runs = Mapping[str, Sequence[Mapping[str, Any]]]


def page() -> str:
    return "\n".join([HEAD, *(_section(name, paper, found) for name, paper, found in sections())])


def sections() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """What has been run: its name, what the paper says, what came out."""
    for name, paper in tomllib.loads((HERE / "paper.toml").read_text(encoding="utf-8")).items():
        file = HERE / "results" / f"{name}.json"
        if file.is_file():
            yield name, paper, json.loads(file.read_text(encoding="utf-8"))


def by_label(found: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    runs: dict[str, list[dict[str, Any]]] = {}
    for run in found["runs"]:
        runs.setdefault(run["label"], []).append(run)
    return runs


def _section(name: str, paper: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    runs = by_label(found)
    seeds = max(len(group) for group in runs.values())
    where = "; ".join(found["machines"])
    made = f"{len(found['runs'])} runs, {seeds} seeds, {_duration(found['seconds'])} on {where}"
    parts = [f"## {paper['title']}\n", f"`offbeat sweep reproductions/{name}.toml --out runs/{name}`\n"]
    parts.append(f"{made}, collected at commit {found['commit']}.\n")
    if "rows" in paper:
        parts += [_table(paper, runs), *_differences(paper, runs)]
    if "ratios" in paper:
        parts.append(_ratios(paper["ratios"], runs))
    if "values" in paper:
        parts.append(_values(paper["values"], runs))
    parts += [paper["notes"].strip() + "\n", f"![{paper['title']}](images/{name}.png)\n"]
    return "\n".join(parts)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _table(paper: Mapping[str, Any], runs: Runs) -> str:
    lines = ["| | " + " | ".join(paper["columns"]) + " |", "|---" * (1 + len(paper["columns"])) + "|"]
    for row, printed in paper["rows"].items():
        cells = []
        for place, column in enumerate(paper["columns"]):
            ours = spread([run[paper["figure"]] for run in runs[f"{row} {column}"]], scale=100)
            cells.append(f"{100 * printed[place]:.1f} / {ours}" if printed else ours)
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _differences(paper: Mapping[str, Any], runs: Runs) -> list[str]:
    """How far our means are from the paper's figures, in points."""
    gaps = _gaps(paper, runs, paper["figure"])
    if not gaps:
        return []
    where = max(gaps, key=lambda name: abs(gaps[name]))
    within = sum(abs(gap) <= 1 for gap in gaps.values())
    best = statistics.fmean(_gaps(paper, runs, "best_accuracy").values())
    return [
        f"Ours minus the paper's: {statistics.fmean(gaps.values()):+.2f} points in the mean; {within} of {len(gaps)} "
        f"cells lie within one point; the farthest is {where}: {gaps[where]:+.1f}. With the best evaluation of each "
        f"run instead it would be {best:+.2f} in the mean.\n"
    ]


def _gaps(paper: Mapping[str, Any], runs: Runs, figure: str) -> dict[str, float]:
    return {
        f"{row}, {column}": 100 * (statistics.fmean(run[figure] for run in runs[f"{row} {column}"]) - printed[place])
        for row, printed in paper["rows"].items()
        for place, column in enumerate(paper["columns"] if printed else [])
    }


def _ratios(ratios: Mapping[str, Any], runs: Runs) -> str:
    """One variant's figure over the other's, seed by seed."""
    one, other = ratios["of"]
    lines = [f"| {one} / {other} | paper | ours | {one} | {other} |", "|---|---|---|---|---|"]
    for name, printed in ratios.items():
        if name != "of":
            first, second = ([run[name] for run in runs[label]] for label in (one, other))
            quotients = [a / b for a, b in zip(first, second, strict=True)]
            cells = [_plain(values) for values in (quotients, first, second)]
            lines.append(f"| {WORDS[name]} | {printed:.3g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _values(values: Mapping[str, Any], runs: Runs) -> str:
    """Several figures of each variant."""
    names = values["names"]
    lines = ["| | " + " | ".join(WORDS[name] for name in names) + " |", "|---" * (1 + len(names)) + "|"]
    for label, printed in values.items():
        if label != "names":
            ours = [_plain([run[name] for run in runs[label]]) for name in names]
            cells = [f"{'—' if math.isnan(p) else f'{p:g}'} / {own}" for p, own in zip(printed, ours, strict=True)]
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _plain(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.3g} ± {statistics.stdev(values):.1g}"


def picture(paper: Mapping[str, Any], runs: Runs) -> Figure:
    return _dots(paper["values"], runs) if "values" in paper else _curves(paper, runs)


def _dots(values: Mapping[str, Any], runs: Runs) -> Figure:
    """The paper's figures beside ours, a panel for each of them."""
    from matplotlib import pyplot as plt

    labels = [label for label in values if label != "names"]
    figure, axes = plt.subplots(1, len(values["names"]), figsize=(8.4, 0.6 + 0.32 * len(labels)), sharey=True)
    for place, (axis, name) in enumerate(zip(axes, values["names"], strict=True)):
        for height, label in enumerate(labels):
            ours = [run[name] for run in runs[label]]
            axis.plot([min(ours), max(ours)], [height, height], color=COLOURS[0], linewidth=1.2)
            axis.plot(statistics.fmean(ours), height, "o", color=COLOURS[0], label="" if height else "ours")
            axis.plot(values[label][place], height, "x", color=COLOURS[3], label="" if height else "paper")
        axis.set(xlabel=f"{WORDS[name]} (versions)", xlim=(0, None), yticks=range(len(labels)), yticklabels=labels)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    axes[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    return figure


def _curves(paper: Mapping[str, Any], runs: Runs) -> Figure:
    """Accuracy over rounds or time, a panel for each of `curves`; the mean over the seeds and the band between them."""
    from matplotlib import pyplot as plt

    panels, time = paper["curves"], paper.get("over") == "virtual_seconds"
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels) + 0.6, 3.4), sharey=True, squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        shown = {label: _within(panel, label) for label in runs if _within(panel, label)}
        for colour, (label, name) in zip(COLOURS, shown.items(), strict=False):
            curves = [run["curve"] for run in runs[label]]
            points = list(zip(*curves, strict=False))
            at = [statistics.fmean(p[1 if time else 0] for p in point) for point in points]
            axis.plot(at, [100 * statistics.fmean(p[2] for p in point) for point in points], color=colour,
                      label=name, linewidth=1.4)  # fmt: skip
            low, high = ([100 * pick(p[2] for p in point) for point in points] for pick in (min, max))
            axis.fill_between(at, low, high, color=colour, alpha=0.12, linewidth=0)
        axis.set(title=panel, xlabel="virtual time (s)" if time else "round", ylim=(40, 95))
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, loc="lower right", fontsize=8)
    axes[0][0].set_ylabel("test accuracy (%)")
    figure.tight_layout()
    return figure


def _within(panel: str, label: str) -> str:
    """What is left of a label in a panel for one row or one column; nothing where it belongs to another."""
    if label.startswith(panel):
        return label.removeprefix(panel).strip()
    return label.removesuffix(f" {panel}") if label.endswith(f" {panel}") else ""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    for name, paper, found in sections():
        picture(paper, by_label(found)).savefig(IMAGES / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
