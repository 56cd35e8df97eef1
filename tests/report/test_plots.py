"""Figures for papers: they show the data of the folders, and none is drawn without data."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from tests.support.run_folders import with_epsilon

from offbeat.report import figure_style, figures, plots, read, series


@pytest.mark.parametrize(
    ("name", "own"),
    [("lossy", set()), ("sweep/ca2fl/seed-0", {"ages", "gradients"}), ("cafga", {"network", "consensus"})],
)
def test_every_picture_of_a_run(runs: pathlib.Path, tmp_path: pathlib.Path, name: str, own: set[str]) -> None:
    pictures = plots.of_run(read.read(runs / name))
    always = {"staleness", "staleness_over_time", "concurrency", "participation", "timeline", "at_work", "durations"}
    assert pictures.keys() == always | {"partition"} | own
    for kind, figure in pictures.items():
        figure.savefig(tmp_path / f"{kind}.svg")
        assert (tmp_path / f"{kind}.svg").stat().st_size > 2000


def test_epsilon_is_drawn(runs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    record = read.read(with_epsilon(runs, tmp_path / "private"))
    (line,) = plots.of_run(record)["epsilon"].axes[0].lines
    assert np.array(line.get_ydata()).tolist() == [0.5 * n for n in range(len(record.metrics))]


def test_a_plan_is_drawn_for_every_device(runs: pathlib.Path) -> None:
    record = read.read(runs / "fedluck")
    assert sum(kind.startswith("plan-") for kind in plots.of_run(record)) == 12
    (mark,) = plots.plan(record, 3).axes[0].lines
    k, delta, *_ = record.setting["plan"][3]
    assert np.array(mark.get_xydata()).tolist() == [[delta, k]]


def test_bars_are_the_counts(runs: pathlib.Path) -> None:
    record = read.read(runs / "lossy")
    heights = [bar.get_bbox().height for bar in plots.staleness(record).axes[0].patches]  # type: ignore[attr-defined]
    assert heights == series.staleness(record.log())[1].tolist()


def test_lost_trips_are_marked(runs: pathlib.Path) -> None:
    record = read.read(runs / "lossy")
    axes = plots.timeline(record).axes[0]
    trips = series.sample_jobs(record.log())[1]
    assert len(axes.patches) == len(trips)
    assert len(axes.lines) == np.count_nonzero(trips["status"])


def test_series_differ_in_color_line_or_marker() -> None:
    styles = [repr(figure_style.series_style(place)) for place in range(88)]
    assert len(set(styles)) == 88
    colors = {figure_style.series_style(place)["color"] for place in range(8)}
    assert len(colors) == 8


def test_curves_of_many_experiments_have_a_legend_that_covers_nothing(runs: pathlib.Path) -> None:
    folder = runs / "sweep" / "ca2fl" / "seed-0"
    for width in (figure_style.COLUMN, figure_style.PAGE):
        figure = plots.curves({f"experiment {n}": [folder] for n in range(15)}, "version", metric="loss", width=width)
        figure.draw_without_rendering()
        assert figure.get_size_inches()[0] == width
        (legend,) = figure.legends
        box, drawn, whole = legend.get_window_extent(), figure.axes[0].get_window_extent(), figure.bbox
        assert box.y0 >= drawn.y1
        assert box.x0 >= whole.x0
        assert box.x1 <= whole.x1
        ticks = figure.axes[0].get_xticks()
        assert (ticks == np.round(ticks)).all()
        assert figure.axes[0].get_ylabel() == "test loss"
    assert figure.dpi == 300


def test_the_range_fits_the_values(runs: pathlib.Path) -> None:
    folder = runs / "sweep" / "ca2fl" / "seed-0"
    values = [100 * line["accuracy"] for line in read.read(folder).metrics]
    low, high = plots.curves({"CA2FL": [folder]}).axes[0].get_ylim()
    span = max(values) - min(values)
    assert max(0, min(values) - 0.1 * span) <= low <= min(values)
    assert max(values) <= high <= min(100, max(values) + 0.1 * span)


def test_figures_of_a_run_have_the_color_of_its_experiment(runs: pathlib.Path) -> None:
    from matplotlib.colors import to_hex

    made = figures.draw(read.records([runs / "sweep"]), ["accuracy", "staleness"])
    lines = {line.get_label(): line.get_color() for line in made["accuracy-version"].axes[0].lines}
    for label in ("FEDBUFF", "CA2FL"):
        bar = made[f"{label}-seed0-staleness"].axes[0].patches[0]
        assert to_hex(bar.get_facecolor()).upper() == lines[label]


def test_a_picture_fits_a_column_and_can_be_changed(runs: pathlib.Path) -> None:
    figure = plots.concurrency(read.read(runs / "lossy"))
    assert figure.get_size_inches()[0] == 3.4
    figure.axes[0].set_title("mine")
    assert figure.axes[0].get_title() == "mine"
