"""Runs as CSV."""

from __future__ import annotations

import csv
import io
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import offbeat as ob
from offbeat.cli import main
from offbeat.data import Digits
from offbeat.runs import api
from offbeat.runs.data import Data
from offbeat.runs.experiment import Experiment
from offbeat.runs.folder import STATUS
from offbeat.runs.sweep import Sweep


def run(out: pathlib.Path, **more: Any) -> None:
    experiment = Experiment(
        data=Data(source=Digits(), clients=10),
        algorithm=ob.FedBuff(),
        rounds=6,
        scheduler=ob.Buffered(concurrency=6, buffer=3),
        evaluation=ob.Evaluation(every=2),
        executor="vectorized",
        **more,
    )
    api.execute(experiment, out=out)


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    run(tmp_path / "a", seed=1, environment=ob.Environment(loss=0.2, trip_timeout=9.0))
    return tmp_path


def export(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["export", *arguments])


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def lines(folder: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_metrics_of_several_runs_to_the_last_digit(here: pathlib.Path) -> None:
    run(here / "b")
    with (here / "b/metrics.jsonl").open("a") as file:
        file.write(json.dumps({"version": 7, "fairness": 0.25}) + "\n")
    result = export("a", "b", "--csv", "all.csv")
    assert (result.exit_code, result.output) == (0, "")
    table = rows((here / "all.csv").read_text())
    expected = [("a", line) for line in lines(here / "a")] + [("b", line) for line in lines(here / "b")]
    assert [row["run"] for row in table] == [name for name, _ in expected]
    for row, (_, line) in zip(table, expected, strict=True):
        assert {name: float(value) for name, value in row.items() if name != "run" and value} == line
    assert table[-1]["accuracy"] == "", "what a line does not say is left empty"
    assert export("a", "b").output == (here / "all.csv").read_text(), "- is stdout"
    assert sorted(path.name for path in here.iterdir()) == ["a", "all.csv", "b"]


def test_trips(here: pathlib.Path) -> None:
    log = np.load(here / "a/updates.npy")
    table = rows(export("a", "--updates").output)
    assert len(table) == len(log) > 18
    assert {row["status"] for row in table} >= {"aggregated", "lost"}
    for row, trip in zip(table, log, strict=True):
        assert STATUS.index(row["status"]) == trip["status"]
        for name in ("sent", "time", "client", "version", "staleness", "steps", "bytes", "loss"):
            assert np.array_equal(float(row[name]), trip[name], equal_nan=True)


def test_a_sweep_stands_for_its_runs(here: pathlib.Path) -> None:
    table = {
        "rounds": 2, "scheduler": {"concurrency": 6, "buffer": 3}, "data": {"name": "digits", "clients": 10},
    }  # fmt: skip
    plan = Sweep.plan(table, ["algorithm.name=fedbuff,ca2fl"], [0])
    list(plan.run(here / "s", None, lambda cells: [None] * len(cells)))
    (here / "s/ca2fl/seed-0/config.toml").unlink()  # as if it had not begun
    assert {row["run"] for row in rows(export("s", "a").output)} == {"s/fedbuff/seed-0", "a"}


@pytest.mark.parametrize(
    ("damage", "arguments", "expected"),
    [
        (("a/metrics.jsonl", -20), ["a"], "offbeat: a/metrics.jsonl is damaged: line 4 is not valid JSON: "),
        (("a/metrics.jsonl", None), ["a"], "offbeat: a/metrics.jsonl is missing"),
        (("a/updates.npy", -3), ["a", "--updates"], "offbeat: a/updates.npy cannot be read: "),
        (("a/updates.npy", 0), ["a", "--updates"], "offbeat: a/updates.npy cannot be read: "),
        (("a/config.toml", None), ["a"], "offbeat: a is not a run folder: it has no config.toml"),
        (None, ["a", "nowhere"], "offbeat: nowhere is not a run folder: it has no config.toml"),
        (None, ["a", "--csv", "no/such/folder.csv"], "offbeat: --csv: cannot write no/such/folder.csv: No such file"),
        (None, ["a", "--csv", "a"], "offbeat: --csv: cannot write a: Is a directory"),
        (None, ["a", "--csv", "."], "offbeat: --csv: cannot write .: Is a directory"),
    ],
)
def test_a_broken_run_is_reported_in_one_line_and_nothing_is_written(
    here: pathlib.Path, damage: tuple[str, int | None] | None, arguments: list[str], expected: str
) -> None:
    if damage is not None:
        file, end = here / damage[0], damage[1]
        raw = file.read_bytes()
        file.unlink()
        if end is not None:
            file.write_bytes(raw[:end])
    before = sorted(here.rglob("*"))
    result = export(*arguments)
    assert result.exit_code == 2
    assert result.output.startswith(expected)
    assert len(result.output.splitlines()) == 1
    assert sorted(here.rglob("*")) == before


def test_a_broken_list_of_runs(here: pathlib.Path) -> None:
    (here / "s").mkdir()
    for text in ("{", "{}", '{"runs": [1]}'):
        (here / "s/sweep.json").write_text(text)
        result = export("s")
        assert (result.exit_code, len(result.output.splitlines())) == (2, 1), result.output
        assert "s/sweep.json" in result.output
