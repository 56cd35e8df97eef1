"""Comparisons from Python: means, paired differences, and their forms."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest
from tests.support.experiments import experiment

import offbeat as ob
from offbeat.interactive import comparison
from offbeat.report import paired, read


def settings(**more: Any) -> dict[str, Any]:
    base = experiment()
    own = {"data": base.data, "model": base.model, "scheduler": base.scheduler, "rounds": 6, "evaluation": 2}
    return {**own, "client": {"slow": ob.SGD(lr=0.003), "fast": ob.SGD(lr=0.1)}, "algorithm": ob.FedBuff()} | more


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> ob.SweepResult:
    return ob.sweep(**settings(), seeds=range(4), out=tmp_path_factory.mktemp("comparison") / "s")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_the_differences_are_those_of_the_seeds(swept: ob.SweepResult) -> None:
    stats = pytest.importorskip("scipy.stats")
    found = swept.compare(metric="loss", at={"version": 5})
    slow, fast = ([result.evaluations[2]["loss"] for result in swept[label]] for label in ("slow", "fast"))
    assert [line["version"] for line in swept.results[0].evaluations] == [0, 2, 4, 6]
    assert [(row.label, row.seeds, row.values) for row in found.rows] == [
        ("slow", (0, 1, 2, 3), tuple(slow)),
        ("fast", (0, 1, 2, 3), tuple(fast)),
    ]
    (row,) = found.differences
    wanted = stats.ttest_rel(fast, slow)
    interval = wanted.confidence_interval(0.95)
    assert (row.label, row.baseline, row.seeds) == ("fast", "slow", (0, 1, 2, 3))
    assert row.values == tuple(b - a for a, b in zip(slow, fast, strict=True))
    assert (row.mean, row.p) == pytest.approx((sum(row.values) / 4, wanted.pvalue))
    assert (row.low, row.high) == pytest.approx((interval.low, interval.high))
    assert (row.p_holm, row.sign_p) == (row.p, 0.125)


def test_python_and_the_command_line_compare_alike(swept: ob.SweepResult) -> None:
    wanted = paired.compare(read.records([swept.folder]), "loss", {"version": 4})
    found = ob.compare(swept.folder, metric="loss", at={"version": 4})
    assert (found.differences, found.values) == (wanted.differences, wanted.values)
    assert set(found.notes) >= set(wanted.notes)


def test_the_baseline_and_the_confidence_can_be_chosen(swept: ob.SweepResult) -> None:
    (wide,) = swept.compare("loss", baseline="fast", confidence=0.99).differences
    (narrow,) = swept.compare("loss", baseline="fast", confidence=0.5).differences
    assert (wide.label, wide.baseline, narrow.mean) == ("slow", "fast", wide.mean)
    assert None not in (wide.low, narrow.low)
    assert (wide.low or 0) < (narrow.low or 0) < wide.mean
    assert "99 % interval" in repr(swept.compare(confidence=0.99))
    with pytest.raises(ob.OffbeatError, match="baseline: there is no experiment 'x'; there are slow, fast"):
        swept.compare(baseline="x")


@pytest.mark.parametrize("axis", paired.PLACES)
def test_every_axis_can_be_fixed(swept: ob.SweepResult, axis: str) -> None:
    column = paired.PLACES[axis]
    place = swept.results[0].evaluations[1][column]
    assert 0 < place < swept.results[0].evaluations[2][column]
    assert swept.compare("loss", at={axis: place}).rows[0].values[0] == swept.results[0].evaluations[1]["loss"]


def test_unfinished_runs_count_only_up_to_what_they_reached(swept: ob.SweepResult) -> None:
    cut = ob.run(**settings(client=ob.SGD(lr=0.2), algorithm=ob.CA2FL()))
    vars(cut)["record"] = dataclasses.replace(cut.record, state="interrupted")
    end = ob.compare(swept, cut)
    assert [row.label for row in end.rows] == ["slow", "fast"]
    assert "ca2fl, seed 0, is interrupted and is left out" in end.notes
    assert [row.label for row in ob.compare(swept, cut, at={"version": 4}).rows] == ["slow", "fast", "ca2fl"]
    alone = ob.compare(cut)
    assert alone.rows == []
    assert "is interrupted" in repr(alone)


def test_forms(swept: ob.SweepResult) -> None:
    found = swept.compare("loss")
    (row,) = found.differences
    difference = f"{row.mean:+.4g}".replace("-", "−")
    text = repr(found)
    assert "\x1b" not in text
    assert text.index("loss of the last evaluation") < text.index("fast − slow") < text.index("note    with 4 seeds")
    assert difference in text
    page, markdown, latex = found._repr_html_(), found.markdown(), found.latex()
    assert page.count("<table>") == 2
    assert f"<tr><th>fast − slow</th><td>4</td><td>{difference}</td>" in page
    assert f"| fast − slow | 4 | {difference} |" in markdown
    assert latex.count(r"\begin{tabular}") == 2
    assert latex.rstrip().splitlines()[-1].startswith("% with 4 seeds")
    single = swept["slow"][0]
    assert ob.compare(single).latex().count(r"\begin{tabular}") == 1, "nothing to compare with"


def test_data_frames(swept: ob.SweepResult) -> None:
    pytest.importorskip("pandas")
    found = swept.compare("loss")
    frame, (row,) = found.to_frame(), found.differences
    assert list(frame.columns) == list(comparison.COLUMNS)
    first = frame.iloc[0]
    assert (first["label"], first["baseline"], first["seeds"]) == ("fast", "slow", 4)
    names = ("mean", "low", "high", "p", "p_holm", "sign_p", "sign_p_holm")
    assert [first[name] for name in names] == [getattr(row, name) for name in names]
    one = ob.compare(*(swept[label][0] for label in swept.labels)).to_frame()
    assert one["p"].dtype == float
    assert one["p"].isna().all()
    assert found.table["mean"].tolist() == [row.mean for row in found.rows]


def test_nothing_to_compare(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ob.OffbeatError, match="there is no run with an evaluation"):
        ob.compare()
    with pytest.raises(ob.RunFolderError, match="no runs found"):
        ob.compare(tmp_path)
