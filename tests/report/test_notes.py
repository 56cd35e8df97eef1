"""Notes on comparisons: runs done twice, other problems, other budgets."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil

import numpy as np
from click.testing import CliRunner

from offbeat.cli import main
from offbeat.report import notes, plots, read

TABLE = """
rounds = {rounds}
virtual_seconds = 30.0
[algorithm]
name = "{algorithm}"
[data]
name = "synthetic"
clients = 12
[evaluation]
every = 5
"""


def run(folder: pathlib.Path, algorithm: str, rounds: int = 10, *more: str) -> read.Record:
    file = folder.with_suffix(".toml")
    file.write_text(TABLE.format(algorithm=algorithm, rounds=rounds))
    found = CliRunner().invoke(main, ["run", str(file), "--out", str(folder), "--quiet", *more])
    assert found.exit_code == 0, found.output
    return read.read(folder)


def test_a_run_that_was_done_twice_counts_once(tmp_path: pathlib.Path) -> None:
    """Otherwise it would be two seeds that agree to the last digit."""
    record = run(tmp_path / "a", "fedbuff")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    records = read.records([tmp_path])
    kept, remarks = notes.distinct(records)
    assert [each.path for each in kept] == [record.path]
    assert remarks == [f"{tmp_path / 'b'} has the config and seed of {tmp_path / 'a'} and is left out"]
    shown = CliRunner().invoke(main, ["compare", str(tmp_path)]).output
    assert "±" not in shown
    assert "is left out" in shown.replace("\n", " ")
    other = dataclasses.replace(records[1], seed=1)
    assert notes.distinct([records[0], other]) == ([records[0], other], [])


def test_the_longer_of_two_equal_runs_counts(tmp_path: pathlib.Path) -> None:
    record = run(tmp_path / "a", "fedbuff")
    shorter = dataclasses.replace(record, path=tmp_path / "b", metrics=record.metrics[:1])
    assert notes.distinct([shorter, record])[0] == [record]


def test_budgets_are_stated_and_other_problems_are_noted(tmp_path: pathlib.Path) -> None:
    one = run(tmp_path / "a", "fedbuff")
    two = run(tmp_path / "b", "fedasync")
    (note,) = notes.differences([one, two])
    ends = [record.metrics[-1] for record in (one, two)]
    assert ends[0]["updates"] != ends[1]["updates"]
    low, high = sorted(f"{end['updates']:,.0f}" for end in ends)
    assert {low, high} == {f"{end['updates']:,.0f}" for end in ends}
    assert "to" in note.split(" updates")[0]
    assert note.endswith("equal for all: 10 rounds")
    assert notes.differences([one]) == [], "one experiment is no comparison"
    assert notes.differences([one, dataclasses.replace(one, label="same budgets")]) == []
    longer = dataclasses.replace(two, metrics=[{**line, "version": 3 * line["version"]} for line in two.metrics])
    assert notes.differences([one, longer])[0].endswith("none is equal for all")
    other = dataclasses.replace(two, config=dict(two.config) | {"model": {"name": "mlp"}})
    assert notes.differences([one, other])[0].startswith("the runs differ in [model]")


def test_a_curve_ends_at_the_mean_of_the_final_values(tmp_path: pathlib.Path) -> None:
    """Also if one seed ends earlier than the other."""
    one = run(tmp_path / "a", "fedbuff", 10)
    two = run(tmp_path / "b", "fedbuff", 25, "--seed", "1")
    assert one.metrics[-1]["virtual_seconds"] < two.metrics[-1]["virtual_seconds"]
    (line,) = plots.curves({"both": [one.path, two.path]}).axes[0].lines
    finals = [100 * record.metrics[-1]["accuracy"] for record in (one, two)]
    assert np.asarray(line.get_ydata())[-1] == np.mean(finals)
    assert np.asarray(line.get_xdata())[-1] == two.metrics[-1]["virtual_seconds"]
