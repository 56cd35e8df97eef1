"""The result of a search: its table, its figure and the files of the best."""

from __future__ import annotations

import csv
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from offbeat.errors import RunFolderError
from offbeat.report.figure_style import COLUMN, DPI, MARKERS, PAGE, outer_legend, series_style, styled
from offbeat.report.tables import plain_table, spread
from offbeat.runs import config
from offbeat.tuning.search import Trial, Tuning
from offbeat.tuning.space import OneOf

if TYPE_CHECKING:
    from offbeat.report.figure import InlineFigure as Figure

HEIGHT = 1.9  # inches of a row of axes


def rows(tuning: Tuning, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return the trials as rows with one column per parameter."""
    return [
        {
            "rule": trial.rule, "trial": trial.number, "budget": trial.share,
            **{name: trial.params.get(name) for name in tuning.space},
            tuning.info.name: trial.value, "target_seconds": trial.target_seconds,
        }
        for trial in trials
    ]  # fmt: skip


def table(tuning: Tuning, trials: Sequence[Trial], limit: int = 20) -> Table:
    """Return a table of the trials for a terminal, the best first.

    Args:
        tuning: The search.
        trials: The trials in order.
        limit: Trials to show.
    """
    info, timed = tuning.info, any(trial.target_seconds is not None for trial in trials)
    rungs = len(tuning.search.shares) > 1
    left = f"; {len(trials) - limit} more in trials.csv" if len(trials) > limit else ""
    found = plain_table(
        f"final {info.name}, mean of {len(tuning.search.seeds)} seed{'s' * (len(tuning.search.seeds) > 1)}{left}",
        info.title, *tuning.space, *(["rounds"] if rungs else []), *(["s to target"] if timed else []),
    )  # fmt: skip
    for trial in trials[:limit]:
        value = "diverged" if trial.value is None else spread(
            trial.values, "{:.1f}" if info.unit == "%" else "{:.4g}", info.scale
        )  # fmt: skip
        found.add_row(
            trial.label(len(tuning.rules) == 1, 1), value,
            *(shown(trial.params.get(name)) for name in tuning.space),
            *([_budget(trial)] if rungs else []),
            *([shown(trial.target_seconds)] if timed else []),
        )  # fmt: skip
    return found


def figure(tuning: Tuning, trials: Sequence[Trial]) -> Figure:
    """Draw the metric over each parameter; trials with fewer rounds are pale, and the best are circled.

    Args:
        tuning: The search.
        trials: The trials.
    """
    from offbeat.report.figure import InlineFigure

    count, best = len(tuning.space), tuning.best(trials)
    columns = min(count, 3)
    lines = -(-count // columns)
    width = COLUMN if columns == 1 else PAGE
    drawn = InlineFigure(figsize=(width, HEIGHT * lines + 0.3), dpi=DPI, layout="constrained")
    for place, (name, distribution) in enumerate(tuning.space.items()):
        shared = drawn.axes[0] if drawn.axes else None
        axes = styled(drawn.add_subplot(lines, columns, place + 1, sharey=shared))
        places = _places(distribution)
        for number, rule in enumerate(tuning.rules):
            style = series_style(number)
            some = [t for t in trials if t.rule == rule and t.value is not None and name in t.params]
            for share in sorted({trial.share for trial in some}):
                points = [trial for trial in some if trial.share == share]
                axes.scatter(
                    [_place(places, trial.params[name]) for trial in points],
                    [tuning.info.scale * (trial.value or 0.0) for trial in points],
                    s=14, color=style["color"], marker=MARKERS[number % len(MARKERS)], linewidths=0,
                    alpha=0.35 + 0.65 * share, label=rule if share == 1 else None,
                )  # fmt: skip
            if rule in best and name in best[rule].params:
                x, y = _place(places, best[rule].params[name]), tuning.info.scale * (best[rule].value or 0.0)
                axes.scatter([x], [y], s=60, facecolors="none", edgecolors=style["color"], linewidths=1)
        if places is not None:
            axes.set_xticks(range(len(places)), list(places))
        elif _logarithmic(tuning, name):
            axes.set_xscale("log")
        axes.set_xlabel(name)
        if place % columns == 0:
            axes.set_ylabel(tuning.info.title)
    if len(tuning.rules) > 1:
        outer_legend(drawn)
    return drawn


def write(tuning: Tuning, trials: Sequence[Trial], folder: pathlib.Path) -> list[pathlib.Path]:
    """Write the table of trials, the figure, and the best experiment of each rule as TOML.

    Args:
        tuning: The search.
        trials: The trials in order.
        folder: The folder of the search.

    Returns:
        The paths of the experiments.
    """
    lines = rows(tuning, trials)
    try:
        with (folder / "trials.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)
        figure(tuning, trials).savefig(folder / "trials.png")
        (folder / "best").mkdir(exist_ok=True)
        return [_write_best(tuning, trial, folder) for trial in tuning.best(trials).values()]
    except OSError as error:
        raise RunFolderError(f"cannot write to {folder}: {error.strerror}") from error


def _write_best(tuning: Tuning, trial: Trial, folder: pathlib.Path) -> pathlib.Path:
    seeds = tuning.fresh()
    name = re.sub(r"[^\w.=,+-]+", "-", tuning.name(trial)).strip("-.")
    path = folder / "best" / f"{name}.toml"
    used = ", ".join(map(str, tuning.search.seeds))
    text = f"# Trial {trial.number}, found with seed {used}: compare it with other seeds.\n"
    path.write_text(text + config.dump(tuning.cell(trial, seeds[0]).experiment()), encoding="utf-8")
    return path


def _budget(trial: Trial) -> str:
    """Return which part of the rounds, the virtual time and the budget a trial could use."""
    return "all" if trial.share == 1 else f"1/{1 / trial.share:.0f}"


def shown(value: Any) -> str:
    """Return a parameter or a result as text."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _places(distribution: object) -> Mapping[str, int] | None:
    """Return the place of each value on an axis of names, or None for an axis of numbers."""
    if not isinstance(distribution, OneOf):
        return None
    options = distribution.options
    if all(isinstance(each, int | float) and not isinstance(each, bool) for each in options):
        return None
    return {str(each): place for place, each in enumerate(options)}


def _place(places: Mapping[str, int] | None, value: Any) -> float:
    return float(value) if places is None else places[str(value)]


def _logarithmic(tuning: Tuning, name: str) -> bool:
    """Return whether a parameter's axis is logarithmic: by its range, or as its values span a factor of ten."""
    distribution = tuning.space[name]
    if not isinstance(distribution, OneOf):
        return bool(distribution.log)
    low, high = min(distribution.options), max(distribution.options)
    return bool(low > 0 and high >= 10 * low)
