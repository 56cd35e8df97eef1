"""Reproductions: their files can be run, and the page agrees with the results."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import Any

import numpy as np
import pytest

from offbeat.reproductions import files
from offbeat.reproductions.comparison import entries
from offbeat.reproductions.results import Results
from reproductions import claims, figures, page

PAPER = files.papers()
CLAIMS = [(paper, claim) for paper, group in files.claims().items() for claim in group]
DATA = {"paper", "claims", "contents"}


def labels(name: str) -> set[str]:
    return {cell.label for cell in files.cells(name)}


def run(label: str, seed: int = 0, **figures: Any) -> dict[str, Any]:
    return {"label": label, "seed": seed, "machine": "m", "commit": "c", "span": [0, 1], **figures}


def results(*runs: dict[str, Any]) -> Results:
    return Results.of(runs)


def test_every_file_is_on_the_page_and_every_section_has_a_file() -> None:
    assert {file.stem for file in files.FOLDER.glob("*.toml")} - DATA == set(PAPER)


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
    for name, _, found in page.stored():
        assert {run["label"] for run in found.runs} <= labels(name), "results of another file"
        assert (page.IMAGES / f"{name}.png").is_file()


@pytest.mark.parametrize(("paper", "claim"), CLAIMS, ids=lambda value: value if isinstance(value, str) else "")
def test_every_claim_names_cells_and_a_rule(paper: str, claim: dict[str, Any]) -> None:
    known = {
        "claim",
        "reproduction",
        "figure",
        "compare",
        "cells",
        "rows",
        "columns",
        "rising",
        "within",
        "printed",
        "why",
    }
    assert claim.keys() <= known | claims.BOUNDS.keys()
    assert paper in files.contents()
    if "reproduction" not in claim:
        assert "why" in claim, "a claim that nothing covers says why"
        return
    lists = claims.compared(claim)
    for label in (label for each in lists for label in each):
        name, own = claims._place(claim["reproduction"], label)
        assert own in labels(name), f"{own!r} is not a cell of {name}"
    assert {len(each) for each in lists} <= {"level": {1}, "difference": {2}, "ratio": {2}}.get(
        claim["compare"], {3, 4}
    )
    assert claim["compare"] == "order" or {"within", *claims.BOUNDS} & claim.keys(), "a rule"
    judgment = claims.judge(
        paper, claim, dict.fromkeys({claims._place(claim["reproduction"], x)[0] for y in lists for x in y})
    )
    assert judgment.verdict == "not run"
    assert judgment.printed != "—", "give `printed`: paper.toml does not have the paper's values"
    if "within" in claim:
        assert all(check.paper for check in judgment.checks)


@pytest.mark.parametrize(
    "claim", [claim for _, claim in CLAIMS if "least" in claim or "above" in claim or "within" in claim]
)
def test_the_paper_meets_its_own_claims(claim: dict[str, Any]) -> None:
    """A rule that the paper's figures break would judge something else."""
    if "reproduction" in claim:
        for check in claims.judge("afl", claim, {}).checks:
            assert not check.paper or claims._within(claim, check.paper, check.paper), check


def test_the_contents_name_reproductions_and_cover_them_all() -> None:
    named = [
        name for paper in files.contents().values() for item in paper["items"] for name in item.get("reproductions", [])
    ]
    extras = [name for paper in files.contents().values() for name in paper.get("extras", [])]
    assert {*named, *extras} == set(PAPER)
    for paper in files.contents().values():
        names = [item["name"] for item in paper["items"]]
        assert len(set(names)) == len(names)
        assert all("why" in item or item.get("reproductions") for item in paper["items"])


# Judging --------------------------------------------------------------------------------------------------------------

NAME = "ca2fl-cifar10-cnn"
CLAIM: dict[str, Any] = {
    "claim": "a > b", "figure": "accuracy", "reproduction": NAME, "compare": "difference", "above": 0,
    "cells": ["CA²FL {column}", "Asynchronous FL {column}"],
}  # fmt: skip


def judged(found: Results | None, **changes: Any) -> claims.Judgment:
    return claims.judge("ca2fl", CLAIM | changes, {NAME: found})


def pair(column: str, one: float, other: float, seed: int = 0, **more: Any) -> list[dict[str, Any]]:
    return [
        run(f"CA²FL {column}", seed, accuracy=one, **more),
        run(f"Asynchronous FL {column}", seed, accuracy=other, **more),
    ]


def test_a_claim_holds_for_all_some_or_none_of_its_cells() -> None:
    both = [*pair("Dir(0.3)", 0.52, 0.5), *pair("Dir(0.3)", 0.54, 0.5, seed=1), *pair("Dir(0.1)", 0.5, 0.4)]
    found = judged(results(*both))
    assert (found.verdict, found.reproduced) == ("yes", "yes")
    assert found.ours == "Dir(0.3): +3.0 ± 1.4; Dir(0.1): +10.0"
    assert found.printed == "Dir(0.3): +3.2; Dir(0.1): +6.4"
    assert judged(results(*both), above=5).reproduced == "partly (1 of 2)"
    assert judged(results(*both), most=2).verdict == "no", "all bounds count"
    assert judged(results(*both), above=-100, within=1).reproduced == "partly (1 of 2)", "+10 is not within one of +6.4"


def test_the_same_seeds_are_compared() -> None:
    runs = [*pair("Dir(0.3)", 0.5, 0.6), run("Asynchronous FL Dir(0.3)", 1, accuracy=0.1)]
    assert judged(results(*runs)).checks[0].ours[0] == pytest.approx([-10])
    apart = [run("CA²FL Dir(0.3)", 0, accuracy=0.5), run("Asynchronous FL Dir(0.3)", 1, accuracy=0.1)]
    assert judged(results(*apart)).checks[0].ours[0] == pytest.approx([40])


def test_missing_and_shorter_runs_are_marked() -> None:
    assert judged(None).verdict == "not run"
    assert judged(None).ours == "—"
    half = judged(results(*pair("Dir(0.3)", 0.5, 0.4)))
    assert half.reproduced == "yes, part (2 of 4 cells)"
    short: dict[str, Any] = {"set": {"rounds": 100}}
    found = judged(results(*pair("Dir(0.3)", 0.5, 0.4, **short), *pair("Dir(0.1)", 0.5, 0.4, **short)))
    assert found.reproduced == "yes, part (100 of 500 rounds)"
    unequal = [run("CA²FL Dir(0.3)", accuracy=0.5), run("Asynchronous FL Dir(0.3)", accuracy=0.4, **short)]
    assert judged(results(*unequal)).verdict == "not run", "runs of different lengths cannot be compared"


def test_a_cell_that_diverged_breaks_a_claim() -> None:
    runs = [run("CA²FL Dir(0.3)", diverged=True), run("Asynchronous FL Dir(0.3)", accuracy=0.4)]
    found = judged(results(*runs))
    assert found.verdict == "no"
    assert found.ours == "Dir(0.3): diverged"


def test_levels_and_orders() -> None:
    runs = results(*pair("Dir(0.3)", 0.5330, 0.5), *pair("Dir(0.1)", 0.49, 0.51))
    level = judged(runs, compare="level", cells=["CA²FL {column}"], within=1)
    assert [check.holds for check in level.checks] == [True, False]
    falling = judged(runs, compare="order")
    assert [check.holds for check in falling.checks] == [True, False]
    assert falling.ours == "Dir(0.3): 53.3, 50.0; Dir(0.1): 49.0, 51.0"
    assert [check.holds for check in judged(runs, compare="order", rising=True).checks] == [False, True]


def test_costs_that_were_never_paid() -> None:
    costs = {"figure": "target_rounds", "compare": "ratio", "above": -1, "below": 1}
    reached = run("CA²FL Dir(0.3)", target_rounds=50)
    never = run("Asynchronous FL Dir(0.3)", target_rounds=None)
    found = judged(results(reached, never), **costs)
    assert (found.verdict, found.checks[0].ours) == ("yes", [[0.0]])
    other = judged(results(reached | {"target_rounds": None}, never | {"target_rounds": 50}), **costs)
    assert (other.verdict, other.ours) == ("no", "Dir(0.3): never")
    short: dict[str, Any] = {"set": {"rounds": 100}}
    assert judged(results(reached | short, never | short), **costs).verdict == "not run", "it may get there later"


def test_many_values_are_summed_up() -> None:
    name = "afl-mnist"
    claim = {"claim": "", "reproduction": name, "compare": "level", "cells": ["{row} {column}"], "within": 1}
    runs = [run(label, accuracy_last10=0.9) for label in sorted(labels(name))]
    found = claims.judge("afl", claim, {name: results(*runs)})
    printed = [100 * value for row in PAPER[name]["rows"].values() for value in row]
    assert found.ours == "90.0 to 90.0"
    assert found.printed == f"{min(printed):.1f} to {max(printed):.1f}"
    assert found.reproduced == f"partly ({sum(abs(90 - value) <= 1 for value in printed)} of 48)"


# Tables ---------------------------------------------------------------------------------------------------------------


def test_missing_figures_are_stated() -> None:
    found = results(
        run("a", 0, target_seconds=None, accuracy=0.5),
        run("a", 1, target_seconds=None, accuracy=0.5),
        run("b", 0, target_seconds=3.0, accuracy=0.25),
    )
    values = {"names": ["target_seconds", "accuracy"], "a": [1.5, math.nan], "b": [2.0, 0.75]}
    assert page._values(values, found).splitlines()[2:] == [
        "| a | 1.5 / never | 50.0 ± 0.0 |",
        "| b | 2 / 3.00 | 75.0 / 25.0 |",
    ]


def test_a_part_of_a_table_says_what_is_missing() -> None:
    paper = {"figure": "accuracy", "columns": ["x", "y", "z"], "rows": {"a": [0.5, 0.6, 0.7]}}
    (table,) = page._tables(paper, results(run("a x", accuracy=0.25), run("a y", diverged=True)))
    assert table.splitlines()[-1] == "| a | 50.0 / 25.0 | 60.0 / diverged | 70.0 / not run |"


def test_tables_of_costs_stand_beside_that_of_accuracies() -> None:
    paper = {
        "figure": "accuracy",
        "columns": ["x", "y"],
        "rows": {"a": [0.5, 0.6]},
        "target_rounds": {"a": [math.inf, 7]},
        "rounds_to": {"accuracies": [0.7, 0.75], "a x": [5, math.inf]},
    }
    found = run(
        "a x", accuracy=0.5, target_rounds=9, reached={"0.7": {"target_rounds": 6}, "0.75": {"target_rounds": None}}
    )
    rounds, at = list(page._tables(paper, results(found)))[1:]
    assert rounds.splitlines()[-1] == "| a | never / 9.00 | 7 / not run |"
    assert at.splitlines()[0] == "| | rounds to 70 % | rounds to 75 % |"
    assert at.splitlines()[-1] == "| a x | 5 / 6.00 | never / never |"


def test_all_statistics_of_a_cell_are_shown() -> None:
    paper = {"figure": "accuracy_last10", "columns": ["x"], "rows": {"a": [0.5]}}
    found = results(run("a x", accuracy=0.48, accuracy_last10=0.495, best_accuracy=0.52))
    line, table = page._statistics(paper, found, whole=True)
    assert "-2.00 with the final accuracy (0 of 1 cells within a point), -0.50 with the mean of the last ten" in line
    assert table.splitlines()[-1] == "| a x | 50.0 | 48.0 | 49.5 | 52.0 |"
    assert len(list(page._statistics(paper, found, whole=False))) == 1, "fewer rounds cannot be compared"


def test_what_is_not_reproduced_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Results.of([run(label, accuracy=0.5) for label in sorted(labels(NAME))])
    stored = {NAME: whole}
    monkeypatch.setattr(page, "read", lambda path: stored.get(path.stem))
    item = {"name": "Table 1", "shows": "", "reproductions": [NAME]}
    assert page.state(item) == ""
    assert page.state({"why": "No data."}) == "No data."
    assert page.state(item | {"reproductions": ["mifa-cifar10"]}) == "Not run: `offbeat reproduce mifa-cifar10`."
    stored[NAME] = dataclasses.replace(whole, runs=whole.runs[:4])
    assert page.state(item) == f"[A part](#{NAME}): 4 of 10 cells."


# Figures --------------------------------------------------------------------------------------------------------------


def test_a_panel_has_its_own_curves_alone() -> None:
    labels = ["p=1 AFA-CD", "p=10 AFA-CD", "MIFA p=1"]
    assert [figures.within("p=1", label) for label in labels] == ["AFA-CD", "", "MIFA"]
    assert figures.within("", "AFL") == "AFL"


def test_a_curve_ends_at_the_mean_of_the_final_values() -> None:
    """Also if a run ends earlier than others, and if the last evaluation is not among the stored points."""
    ends = {"virtual_seconds": 1.0, "accuracy_last10": None}
    runs = [
        run("a", 0, rounds=10, accuracy=0.8, curve=[[0, 0.0, 0.1], [10, 1.0, 0.8]], **ends),
        run("a", 1, rounds=30, accuracy=0.5, curve=[[0, 0.0, 0.1], [20, 0.7, 0.2]], **ends),
    ]
    figure = figures.picture({"curves": [""]}, results(*runs))
    (line,) = figure.axes[0].get_lines()
    at, values = map(np.asarray, line.get_data())
    assert at[-1] == 30
    assert values[-1] == pytest.approx(100 * statistics.fmean((0.8, 0.5)))


def test_dots_leave_out_what_was_not_run() -> None:
    values = {"names": ["staleness_max"], "a": [3], "b": [4]}
    (axis,) = figures.picture({"values": values}, results(run("a", staleness_max=3))).axes
    assert sorted(float(x) for line in axis.get_lines() for x in np.asarray(line.get_xdata())) == [3, 3, 3, 3, 4]


def test_every_entry_of_the_paper_is_compared() -> None:
    for name, paper in PAPER.items():
        found = list(entries(paper, results()))
        assert len({(entry.cell, entry.figure) for entry in found}) == len(found) > 0, name
