"""Reproductions: their files can be run, and the page agrees with the results."""

from __future__ import annotations

import math
import pathlib
import tomllib

import pytest
from reproductions import collect, page

from offbeat.runs.sweep import Sweep

ROOT = pathlib.Path(__file__).resolve().parents[1] / "reproductions"
PAPER = tomllib.loads((ROOT / "paper.toml").read_text(encoding="utf-8"))


def labels(name: str) -> set[str]:
    table = tomllib.loads((ROOT / f"{name}.toml").read_text(encoding="utf-8"))
    return {cell.label for cell in Sweep.plan(table, [], []).cells}


def test_every_file_is_on_the_page_and_every_section_has_a_file() -> None:
    assert {file.stem for file in ROOT.glob("*.toml")} - {"paper"} == set(PAPER)


@pytest.mark.parametrize("name", PAPER)
def test_the_configured_runs_are_those_of_the_paper(name: str) -> None:
    paper = PAPER[name]
    reported = {f"{row} {column}" for row in paper.get("rows", {}) for column in paper.get("columns", [])}
    reported |= paper.get("values", {}).keys() - {"names"}
    reported |= set(paper.get("ratios", {}).get("of", []))
    assert reported == labels(name)
    assert all(len(printed) in {0, len(paper["columns"])} for printed in paper.get("rows", {}).values())


def test_the_page_is_generated_from_the_results() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run: python -m reproductions.page"
    for name, _, found in page.sections():
        assert {run["label"] for run in found["runs"]} <= labels(name), "results of another file"
        assert (page.IMAGES / f"{name}.png").is_file()


def test_missing_figures_are_stated() -> None:
    runs: page.Runs = {
        "a": [{"target_seconds": None, "accuracy": 0.5}] * 2,
        "b": [{"target_seconds": 3.0, "accuracy": 0.25}],
    }
    values = {"names": ["target_seconds", "accuracy"], "a": [1.5, math.nan], "b": [2.0, 0.75]}
    assert page._values(values, runs).splitlines()[2:] == [
        "| a | 1.5 / never | — / 50.0 ± 0.0 |",
        "| b | 2 / 3.00 | 75 / 25.0 |",
    ]
    values |= {"a": [math.nan, math.nan], "b": [math.nan, math.nan]}
    assert page._values(values, runs).splitlines()[3] == "| b | 3.00 | 25.0 |"


def test_a_part_of_a_table_says_what_is_missing() -> None:
    paper = {"figure": "accuracy", "columns": ["x", "y", "z"], "rows": {"a": [0.5, 0.6, 0.7]}}
    table = page._table(paper, {"a x": [{"accuracy": 0.25}]}, ["a y"])
    assert table.splitlines()[2] == "| a | 50.0 / 25.0 | 60.0 / diverged | 70.0 / not run |"
    assert page._of_all("mifa-cifar10", {"MIFA α=0.1": []}, {"rounds": 150}) == (
        "**Partial: 1 of 28 cells, 150 of 2,000 rounds.** "
    )
    assert page._of_all("ca2fl-fedasync", dict.fromkeys(labels("ca2fl-fedasync"), ()), {}) == ""


def test_a_panel_has_its_own_curves_alone() -> None:
    labels = ["p=1 AFA-CD", "p=10 AFA-CD", "MIFA p=1"]
    assert [page._within("p=1", label) for label in labels] == ["AFA-CD", "", "MIFA"]
    assert page._within("", "AFL") == "AFL"


def test_time_is_counted_once_where_runs_overlap() -> None:
    assert collect.busy([(0, 10), (2, 5), (8, 12), (20, 21)]) == 13
