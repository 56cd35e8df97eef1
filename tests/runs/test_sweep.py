"""Sweeps are planned as a whole and run piece by piece."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import pytest

import offbeat as ob
from offbeat.runs.folder import read_sweep
from offbeat.runs.sweep import Sweep, merge

BASE: dict[str, Any] = {
    "rounds": 3,
    "algorithm": {"name": "fedbuff"},
    "scheduler": {"concurrency": 6, "buffer": 3},
    "data": {"name": "digits", "clients": 10},
    "evaluation": {"every": 1},
}


def run(plan: Sweep, out: pathlib.Path) -> list[dict[str, Any] | None]:
    ended = {cell.folder: summary for cell, summary in plan.run(out, None, lambda cells: [None] * len(cells))}
    return [ended[cell.folder] for cell in plan.cells if cell.folder in ended]


def test_a_grid_has_every_combination_with_every_seed() -> None:
    plan = Sweep.plan(BASE, ["algorithm.name=fedbuff,ca2fl", "client={name='sgd',lr=0.1},{name='prox',lr=0.2}"], [3, 4])
    assert len(plan.cells) == 8
    cell = plan.cells[-1]
    assert cell.table["algorithm"]["name"] == "ca2fl"
    assert cell.table["client"] == {"name": "prox", "lr": 0.2}
    assert cell.seed == cell.table["seed"] == 4
    assert BASE["algorithm"] == {"name": "fedbuff"}, "the base is not changed"


def test_values_with_commas_in_brackets() -> None:
    plan = Sweep.plan(BASE | {"model": {"name": "mlp"}}, ["model.hidden=[64],[64,32]"], [])
    assert [c.table["model"]["hidden"] for c in plan.cells] == [[64], [64, 32]]


def test_variants_are_laid_over_the_base() -> None:
    table = BASE | {"variants": [{"label": "A/B: ü", "algorithm": {"eta": 0.5}}, {"label": "C", "rounds": 1}]}
    plan = Sweep.plan(table, [], [])
    assert [c.label for c in plan.cells] == ["A/B: ü", "C"]
    assert plan.cells[0].table["algorithm"] == {"name": "fedbuff", "eta": 0.5}
    assert plan.cells[0].folder == "A-B-ü/seed-0", "a label cannot leave the sweep's folder"
    assert plan.cells[1].table["rounds"] == 1


def test_axes_are_combined() -> None:
    rows = [{"label": "a", "rounds": 1}, {"label": "b", "algorithm": {"eta": 0.5}}]
    columns = [{"label": "x"}, {"label": "y", "algorithm": {"eta": 0.1}}]
    plan = Sweep.plan(BASE | {"axes": {"rows": rows, "columns": columns}, "seeds": [0, 3]}, [], [])
    assert [(c.label, c.seed) for c in plan.cells[:4]] == [("a x", 0), ("a x", 3), ("a y", 0), ("a y", 3)]
    assert plan.cells[-1].table["algorithm"]["eta"] == 0.1, "the later axis is laid over the earlier"
    assert plan.cells[0].table["rounds"] == 1
    assert [c.seed for c in Sweep.plan(BASE | {"seeds": [0, 3]}, [], [7]).cells] == [7], "--seeds counts"


@pytest.mark.parametrize(
    ("change", "grid", "expected"),
    [
        ({}, ["algorithm.name=fedbuff,ca4fl"], "algorithm.name: unknown name 'ca4fl'"),
        ({}, ["algorithm.name"], "--grid: 'algorithm.name': expected KEY=VALUE"),
        ({"variants": {"a": 1}}, [], "variants: expected"),
        ({"axes": {"rows": []}}, [], r"axes.rows: expected \[\[axes.rows\]\]"),
        ({"variants": [{"label": "x"}, {"label": "x"}]}, [], "share the folder 'x/seed-0'"),
        ({"variants": [{"label": "x", "rundes": 3}]}, [], "rundes: unknown key"),
    ],
)
def test_a_mistake_in_any_run_is_reported_before_the_first_one(
    change: dict[str, Any], grid: list[str], expected: str
) -> None:
    with pytest.raises(ob.ConfigError, match=expected):
        Sweep.plan(BASE | change, grid, [])


def test_a_restarted_sweep_runs_only_what_is_missing(tmp_path: pathlib.Path) -> None:
    plan = Sweep.plan(BASE, ["algorithm.name=fedbuff,ca2fl"], [0, 1])
    first = run(plan, tmp_path)
    assert len(first) == 4
    stamp = (tmp_path / "ca2fl/seed-1/summary.json").stat().st_mtime_ns
    for name in ("summary.json", "metrics.jsonl", "model.safetensors"):
        (tmp_path / "fedbuff/seed-1" / name).unlink()
    again = run(plan, tmp_path)
    assert [s and s["accuracy"] for s in again] == [s and s["accuracy"] for s in first]
    assert (tmp_path / "ca2fl/seed-1/summary.json").stat().st_mtime_ns == stamp


def test_another_experiment_in_the_same_folder_is_refused(tmp_path: pathlib.Path) -> None:
    run(Sweep.plan(BASE, [], [0]), tmp_path)
    with pytest.raises(ob.RunFolderError, match="contains another experiment"):
        run(Sweep.plan(BASE | {"rounds": 4}, [], [0]), tmp_path)


def test_merging_goes_table_by_table() -> None:
    base = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert merge(base, {"a": {"c": {"f": 4}}, "e": {"g": 5}}) == {"a": {"b": 1, "c": {"d": 2, "f": 4}}, "e": {"g": 5}}
    assert base == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}


def test_a_sweep_keeps_the_runs_of_others_in_its_folder(tmp_path: pathlib.Path) -> None:
    one, other = (Sweep.plan(BASE | {"algorithm": {"name": "fedbuff"}}, [], [seed]) for seed in (0, 1))
    run(one, tmp_path)
    run(other, tmp_path)
    run(other, tmp_path)
    assert [each["seed"] for each in read_sweep(tmp_path)] == [0, 1]
    shutil.rmtree(tmp_path / one.cells[0].folder)
    run(other, tmp_path)
    assert [each["seed"] for each in read_sweep(tmp_path)] == [1], "those that are still there"
