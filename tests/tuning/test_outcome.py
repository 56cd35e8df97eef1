"""The table, the figure and the files of a search."""

from __future__ import annotations

import csv
import pathlib
import tomllib

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table
from tests.tuning.test_search import SPACE, TWO, Runs, tuning

from offbeat.runs import config
from offbeat.tuning import outcome


def text(table: Table) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_the_table_has_the_best_first() -> None:
    search = tuning(TWO, SPACE | {"client.mu": [0.1, 1.0]}, trials=9, method="asha")
    trials = search.run(Runs())
    shown = text(outcome.table(search, trials))
    assert "accuracy (%)" in shown
    first = next(line for line in shown.splitlines() if "trial-" in line)
    assert f"{trials[0].rule} trial-{trials[0].number:03}" in first
    assert f"{100 * (trials[0].value or 0):.1f}" in first
    assert "all" in first
    assert "1/9" in shown
    short = text(outcome.table(search, trials, limit=4))
    assert short.count("trial-") == 4
    assert f"{len(trials) - 4} more in trials.csv" in short


def test_diverged_trials_say_so() -> None:
    search = tuning(space={"client.lr": [0.9]}, trials=1)
    trials = search.run(Runs())
    assert "diverged" in text(outcome.table(search, trials))
    assert outcome.figure(search, trials).axes


def test_the_figure_has_logarithmic_axes_where_values_span_orders() -> None:
    space = SPACE | {"client.steps": [1, 2, 4], "client.batch_size": [4, 64], "algorithm.staleness": ["constant"]}
    search = tuning(space=space, trials=12)
    trials = search.run(Runs())
    axes = {each.get_xlabel(): each for each in outcome.figure(search, trials).axes}
    assert {name: each.get_xscale() for name, each in axes.items()} == {
        "client.lr": "log", "algorithm.eta": "linear", "client.steps": "linear", "client.batch_size": "log",
        "algorithm.staleness": "linear",
    }  # fmt: skip
    assert [label.get_text() for label in axes["algorithm.staleness"].get_xticklabels()] == ["constant"]
    offsets = [np.asarray(points.get_offsets()) for points in axes["client.lr"].collections]
    assert sorted(offsets[0][:, 0]) == pytest.approx(
        sorted(t.params["client.lr"] for t in trials if t.value is not None)
    )
    assert offsets[-1][0] == pytest.approx([trials[0].params["client.lr"], 100 * (trials[0].value or 0)])


def test_the_files_hold_all_trials_and_the_best_of_each_rule(tmp_path: pathlib.Path) -> None:
    search = tuning(TWO, trials=5)
    trials = search.run(Runs())
    paths = outcome.write(search, trials, tmp_path)
    assert [path.name for path in paths] == ["plain.toml", "prox.toml"]
    for path in paths:
        best = search.best(trials)[path.stem]
        experiment = config.parse(tomllib.loads(path.read_text()))
        assert experiment.client.lr == best.params["client.lr"]
        assert (experiment.seed, experiment.rounds) == (1, 90), "a seed that the search did not use"
        assert path.read_text().startswith(f"# Trial {best.number}, found with seed 0")
    rows = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    assert len(rows) == 10
    assert float(rows[0]["client.lr"]) == trials[0].params["client.lr"]
    assert (tmp_path / "trials.png").stat().st_size > 1000
