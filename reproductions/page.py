"""Make docs/reproductions.md and its pictures of paper.toml and results/: `python -m reproductions.page`.  Nothing on
the page is typed by hand but what paper.toml says."""

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

from offbeat.report.plots import COLOURS
from offbeat.report.tables import spread
from offbeat.runs.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent / "docs" / "reproductions.md"
IMAGES = HERE.parent / "docs" / "images"
# What a figure is called, and by how much it is multiplied for people.
WORDS = {"target_rounds": ("rounds", 1), "target_seconds": ("time (s)", 1), "target_bytes_up": ("MB up", 1e-6),
         "staleness_max": ("largest delay", 1), "staleness_mean": ("mean delay", 1), "accuracy": ("accuracy (%)", 100),
         "accuracy_last10": ("accuracy (%)", 100), "best_accuracy": ("best accuracy (%)", 100)}  # fmt: skip

HEAD = """\
# The papers' tables, made again

Every table here is one command; a run that is interrupted goes on when the command is given again. This page and its
pictures are made by `python -m reproductions.page` of what the run folders said (`reproductions/collect.py`) and what
the papers print (`reproductions/paper.toml`). A cell is **paper / ours**, ours being the mean ± standard deviation over
the seeds.
"""

Runs = Mapping[str, Sequence[Mapping[str, Any]]]


def page() -> str:
    return "\n".join([HEAD, *(_section(name, paper, found) for name, paper, found in sections()), _waiting()])


def _waiting() -> str:
    """What can be run and was not yet."""
    files = tomllib.loads((HERE / "paper.toml").read_text(encoding="utf-8"))
    done = {name for name, _, _ in sections()}
    lines = [f"- {paper['title']}: `{_command(name)}`" for name, paper in files.items() if name not in done]
    return "\n".join(["## Not run to the end yet\n", *lines]) + "\n" if lines else ""


def _command(name: str, changes: Mapping[str, Any] | None = None) -> str:
    sets = "".join(f" --set {key}={value}" for key, value in (changes or {}).items())
    return f"offbeat sweep reproductions/{name}.toml{sets} --out runs/{name}"


def _of_all(name: str, runs: Runs, changes: Mapping[str, Any]) -> str:
    """Which part of a table was made, if not all of it."""
    table = tables(name)
    cells = {cell.label for cell in Sweep.plan(table, [], []).cells}
    parts = [f"{len(runs)} of {len(cells)} cells"] if len(runs) < len(cells) else []
    if "rounds" in changes:
        parts.append(f"{changes['rounds']:,} of {table['rounds']:,} rounds")
    return f"**A part: {', '.join(parts)}.** " if parts else ""


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
    counted = f"{seeds} seeds" if seeds > 1 else "one seed"
    made = f"{len(found['runs'])} runs, {counted}, {_duration(found['seconds'])} on {where}"
    changes = found.get("set", {})
    parts = [f"## {paper['title']}\n", f"`{_command(name, changes)}`\n"]
    parts.append(f"{_of_all(name, runs, changes)}{made}, collected at commit {found['commit']}.\n")
    if "rows" in paper:
        parts.append(_table(paper, runs, found.get("diverged", [])))
        parts += [] if "rounds" in changes else _differences(paper, runs)  # fewer rounds are nothing to compare with
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
        if not math.isnan(printed[place]) and f"{row} {column}" in runs
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
            lines.append(f"| {WORDS[name][0]} | {printed:.3g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _values(values: Mapping[str, Any], runs: Runs) -> str:
    """Several figures of each variant."""
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
    return _curves(paper, runs) if "curves" in paper else _dots(paper["values"], runs)


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
        axis.set(xlabel=f"{WORDS[name][0]} (versions)", xlim=(0, None), yticks=range(len(labels)), yticklabels=labels)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    axes[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    return figure


def _curves(paper: Mapping[str, Any], runs: Runs) -> Figure:
    """Accuracy over rounds or time, a panel for each of `curves`; the mean over the seeds and the band between them."""
    from matplotlib import pyplot as plt

    panels = [panel for panel in paper["curves"] if any(_within(panel, label) for label in runs)]
    names = dict.fromkeys(name for panel in panels for label in runs if (name := _within(panel, label)))
    looks = dict(zip(names, itertools.product(("-", "--"), COLOURS), strict=False))
    time = paper.get("over") == "virtual_seconds"
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.6 * len(panels) + 2.2, 3.2), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, panel in zip(axes[0], panels, strict=True):
        shown = {label: _within(panel, label) for label in runs if _within(panel, label)}
        for label, name in shown.items():
            line, colour = looks[name]
            curves = [run["curve"] for run in runs[label]]
            points = list(zip(*curves, strict=False))
            at = [statistics.fmean(p[1 if time else 0] for p in point) for point in points]
            axis.plot(at, [100 * statistics.fmean(p[2] for p in point) for point in points], line, color=colour,
                      label=name, linewidth=1.4)  # fmt: skip
            low, high = ([100 * pick(p[2] for p in point) for point in points] for pick in (min, max))
            axis.fill_between(at, low, high, color=colour, alpha=0.12, linewidth=0)
        axis.set(title=panel, xlabel="virtual time (s)" if time else "round")
        axis.spines[["top", "right"]].set_visible(False)
    handles = {name: line for axis in axes[0] for line, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, frameon=False, loc="outside right center", fontsize=8)
    axes[0][0].set_ylabel("test accuracy (%)")
    return figure


def _within(panel: str, label: str) -> str:
    """What is left of a label in a panel for one row or one column; nothing where it belongs to another."""
    if not panel:
        return label
    if label.startswith(f"{panel} "):
        return label.removeprefix(f"{panel} ")
    return label.removesuffix(f" {panel}") if label.endswith(f" {panel}") else ""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    for name, paper, found in sections():
        picture(paper, by_label(found)).savefig(IMAGES / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
