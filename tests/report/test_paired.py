"""Paired comparisons: differences seed by seed, at a point, and what is left out."""

from __future__ import annotations

import math
import pathlib
import statistics
from typing import Any

import pytest

from offbeat.errors import OffbeatError
from offbeat.report import paired
from offbeat.report.read import Record


def record(label: str, seed: int, values: list[float], state: str = "finished", **config: Any) -> Record:
    lines = [
        {"version": 10 * i, "virtual_seconds": 5.0 * i, "bytes_up": 100 * i, "accuracy": v, "loss": 1 - v}
        for i, v in enumerate(values)
    ]
    return Record(pathlib.Path(label), label, seed=seed, state=state, metrics=lines, config=config)


A = [0.50, 0.60, 0.55, 0.58]
B = [0.56, 0.63, 0.62, 0.60]


def both() -> list[Record]:
    return [record(label, seed, [0.1, v]) for label, finals in (("A", A), ("B", B)) for seed, v in enumerate(finals)]


def test_differences_are_those_of_the_seeds() -> None:
    stats = pytest.importorskip("scipy.stats")
    found = paired.compare(both())
    (row,) = found.differences
    assert (row.label, row.baseline, row.seeds) == ("B", "A", (0, 1, 2, 3))
    assert row.values == tuple(b - a for a, b in zip(A, B, strict=True))
    wanted = stats.ttest_rel(B, A)
    interval = wanted.confidence_interval(0.95)
    assert row.mean == pytest.approx(statistics.fmean(B) - statistics.fmean(A))
    assert (row.p, row.low, row.high) == pytest.approx((wanted.pvalue, interval.low, interval.high), rel=1e-9)
    assert row.p_holm == row.p, "a single comparison needs no correction"
    assert (row.above, row.below, row.sign_p) == (4, 0, 0.125)
    assert found.notes == ["with 4 seeds the sign test cannot give a p-value below 0.125"]


def test_the_order_of_the_runs_does_not_matter() -> None:
    runs = both()
    shuffled = paired.compare([*runs[:4], *reversed(runs[4:])])
    assert sorted(zip(shuffled.differences[0].seeds, shuffled.differences[0].values, strict=True)) == list(
        zip(range(4), paired.compare(runs).differences[0].values, strict=True)
    )


def test_seeds_without_a_partner_are_left_out_with_a_note() -> None:
    found = paired.compare([*both(), record("B", 9, [0.1, 0.9])])
    assert found.differences[0].seeds == (0, 1, 2, 3)
    assert "seed 9 of B has no partner in A and is left out" in found.notes[0]


def test_the_value_at_a_point_is_that_of_the_last_evaluation_not_after_it() -> None:
    run = record("A", 0, [0.1, 0.2, 0.3])
    at = [paired.value_at(run, "accuracy", ("virtual_seconds", x)) for x in (0, 4.9, 5, 9, 10, 99)]
    assert at == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]
    assert paired.value_at(run, "accuracy", None) == 0.3
    found = paired.compare(both(), at={"bytes": 99})
    assert found.at == {"bytes_up": 99}
    assert found.differences[0].values == (0, 0, 0, 0)
    assert found.differences[0].p is None
    assert "all differences are equal" in found.notes[0]
    loss = paired.compare(both(), metric="loss", at={"version": 10}).differences[0]
    assert loss.mean == pytest.approx(statistics.fmean(A) - statistics.fmean(B))


def test_runs_that_end_before_the_point_count_and_unfinished_ones_do_not() -> None:
    runs = [*both(), record("B", 4, [0.1, 0.2], "running"), record("A", 4, [0.1, 0.2, 0.3])]
    found = paired.compare(runs, at={"virtual_seconds": 7})
    assert found.differences[0].seeds == (0, 1, 2, 3)
    assert "B, seed 4, is running and is left out" in found.notes
    assert "B: 4 of 4 runs ended before that point; their last evaluation counts" in found.notes
    assert paired.compare(runs, at={"virtual_seconds": 5}).differences[0].seeds == (0, 1, 2, 3, 4)


def test_an_undefined_value_is_left_out() -> None:
    runs = [*both()[:-1], record("B", 3, [0.1, math.nan])]
    found = paired.compare(runs)
    assert found.differences[0].seeds == (0, 1, 2)
    assert "B, seed 3, has no accuracy there and is left out" in found.notes


def test_a_single_seed_has_no_p_value_in_words() -> None:
    found = paired.compare([record("A", 0, [0.5]), record("B", 0, [0.6])])
    (row,) = found.differences
    assert (row.low, row.high, row.p, row.sign_p) == (None,) * 4
    assert row.mean == pytest.approx(0.1)
    assert "a single seed: no interval and no p-value" in found.notes[0]
    assert paired.compare([record("A", 0, [0.5])]).differences == []
    assert paired.compare([record("A", 0, [0.5]), record("B", 1, [0.6])]).differences == []


def test_several_comparisons_are_corrected() -> None:
    third = [record("C", seed, [0.1, v + 0.01 * seed]) for seed, v in enumerate(A)]
    found = paired.compare([*both(), *third])
    assert [(row.label, row.baseline) for row in found.differences] == [("B", "A"), ("C", "A"), ("C", "B")]
    assert min(row.p_holm or 0 for row in found.differences) == 3 * min(row.p or 9 for row in found.differences)
    some = paired.compare([*both(), *third], baseline="B").differences
    assert [(row.label, row.baseline) for row in some] == [("A", "B"), ("C", "B")]


def test_many_experiments_are_compared_with_the_first() -> None:
    runs = [record(label, seed, [0.1 * seed + 0.01 * i]) for i, label in enumerate("ABCDEF") for seed in (0, 1)]
    found = paired.compare(runs)
    assert [row.label for row in found.differences] == list("BCDEF")
    assert {row.baseline for row in found.differences} == {"A"}
    assert "each is compared with A" in found.notes[0]


def test_experiments_on_other_data_are_no_pair() -> None:
    runs = [record(label, seed, [0.5 + 0.1 * seed], data={"alpha": alpha}) for label, alpha in (("A", 1), ("B", 2))
            for seed in (0, 1)]  # fmt: skip
    found = paired.compare(runs)
    assert found.differences == []
    assert "other data" in found.notes[0]
    assert len(paired.compare(runs, baseline="A").differences) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "f1"}, "no 'f1'; valid: accuracy, loss"),
        ({"at": {"hours": 3}}, "there is no axis 'hours'; valid: version, virtual_seconds, bytes"),
        ({"at": {"version": 3, "bytes": 4}}, "give one of version"),
        ({"at": {"version": math.inf}}, "is not a number"),
        ({"baseline": "Z"}, "there is no experiment 'Z'; there are A, B"),
        ({"confidence": 95}, "is not between 0 and 1"),
    ],
)
def test_mistakes_are_explained(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OffbeatError, match=message):
        paired.compare(both(), **options)
