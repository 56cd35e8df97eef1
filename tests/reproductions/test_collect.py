"""Runs are gathered from folders, and merged with what is stored."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
from reproductions.collect import store
from tests.support.reproductions import tiny

from offbeat.errors import OffbeatError
from offbeat.reproductions import files, results
from offbeat.reproductions.collect import CURVE, _curve, collect
from offbeat.runs.sweep import Cell, Sweep

__all__ = ["tiny"]


def run(out: pathlib.Path, seeds: Sequence[int], labels: Sequence[str] = (), **changes: Any) -> pathlib.Path:
    plan = Sweep.plan(files.table("tiny") | {"seeds": list(seeds)}, [], [])
    cells = [Cell(c.label, c.seed, c.table | changes) for c in plan.cells if not labels or c.label in labels]
    list(Sweep(cells).run(out, None, lambda cells: [None] * len(cells)))
    return out


def keys(found: results.Results) -> list[tuple[str, int]]:
    return [(run["label"], run["seed"]) for run in found.runs]


def test_a_run_is_stored_with_its_figures(tiny: pathlib.Path) -> None:
    folder = run(tiny / "a", [0], ["CA²FL x"])
    (stored,) = collect("tiny", [folder], "abc").runs
    (path,) = folder.rglob("summary.json")
    summary = json.loads(path.read_text())
    assert {name: stored[name] for name in ("label", "seed", "commit")} == {
        "label": "CA²FL x",
        "seed": 0,
        "commit": "abc",
    }
    assert "set" not in stored, "these are the file's settings"
    for name in ("accuracy", "accuracy_last10", "best_accuracy", "rounds", "bytes_up"):
        assert stored[name] == summary[name]
    assert stored["curve"][-1] == [3, round(summary["virtual_seconds"], 2), round(summary["accuracy"], 4)]
    lines = [json.loads(line) for line in path.with_name("metrics.jsonl").read_text().splitlines()]
    first = next(line for line in lines if line["accuracy"] >= 0.05)
    assert stored["reached"]["0.05"]["target_rounds"] == first["version"], "a claim asks for it"
    assert sorted(stored["reached"]) == ["0.05", "0.06"]
    assert results.Results.of([stored]).values("CA²FL x", "target_rounds@0.05") == {0: first["version"]}


def test_the_training_loss_is_stored_if_it_was_computed(tiny: pathlib.Path) -> None:
    evaluation = {"every": 1, "gradient_clients": 2}
    with_it = run(tiny / "a", [0], ["FedBuff x"], evaluation=evaluation)
    found = collect("tiny", [with_it, run(tiny / "b", [0], ["CA²FL x"])])
    (path,) = with_it.rglob("summary.json")
    assert found.values("FedBuff x", "train_loss") == {0: json.loads(path.read_text())["train_loss"]}
    assert found.values("CA²FL x", "train_loss") == {}


def test_parts_in_several_folders_are_one_table(tiny: pathlib.Path) -> None:
    one, other = run(tiny / "a", [1], ["FedBuff x"]), run(tiny / "b", [0], ["CA²FL y", "FedBuff x"])
    found = collect("tiny", [one, other])
    assert keys(found) == [("FedBuff x", 0), ("FedBuff x", 1), ("CA²FL y", 0)], "in the order of the file"
    assert results.shortened("tiny", found) == ["2 of 4 cells"]
    with pytest.raises(OffbeatError, match=r"'FedBuff x', seed 1, is in .*a.* and in .*a"):
        collect("tiny", [one, one])


def test_other_settings_are_recorded(tiny: pathlib.Path) -> None:
    short = run(tiny / "a", [0], rounds=2, client={"lr": 0.5, "steps": 1, "batch_size": 10})
    found = collect("tiny", [short])
    assert [each["set"] for each in found.runs] == [{"client.lr": 0.5, "rounds": 2}] * 4
    assert results.shortened("tiny", found) == ["2 of 4 rounds"]
    assert results.shortened("tiny", found, ["CA²FL x"]) == ["2 of 3 rounds"], "of the cell's own"
    whole = run(tiny / "b", [1], ["CA²FL x"])
    with pytest.raises(OffbeatError, match="'CA²FL x' do not belong together"):
        collect("tiny", [short, whole])


def test_the_device_and_the_executor_may_differ(tiny: pathlib.Path) -> None:
    one, other = (
        run(tiny / kind, [seed], ["CA²FL x"], executor=kind) for seed, kind in enumerate(("sequential", "vectorized"))
    )
    assert ["set" in each for each in collect("tiny", [one, other]).runs] == [False, False]


def test_results_are_merged(tiny: pathlib.Path) -> None:
    store("tiny", [run(tiny / "a", [0], ["FedBuff x"])])
    again = run(tiny / "b", [0, 1], ["FedBuff x", "CA²FL x"])
    assert store("tiny", [again], merge=True) == "tiny.json: 4 runs; 2 of 4 cells"
    found = results.read(files.stored("tiny"))
    assert found is not None
    assert keys(found) == [("FedBuff x", 0), ("FedBuff x", 1), ("CA²FL x", 0), ("CA²FL x", 1)]
    assert found.runs[0] == collect("tiny", [again], found.runs[0]["commit"]).runs[0], (
        "the later run replaces the earlier"
    )
    store("tiny", [again])
    assert store("tiny", [run(tiny / "c", [0], ["CA²FL y"])]) == "tiny.json: 1 runs; 1 of 4 cells", "without --merge"


def test_results_of_other_settings_are_not_merged(tiny: pathlib.Path) -> None:
    store("tiny", [run(tiny / "a", [0], ["FedBuff x"])])
    before = files.stored("tiny").read_text()
    with pytest.raises(OffbeatError, match="do not belong together"):
        store("tiny", [run(tiny / "b", [1], ["FedBuff x"], rounds=2)], merge=True)
    assert files.stored("tiny").read_text() == before


def test_a_run_that_diverged_is_stored(tiny: pathlib.Path) -> None:
    """Weight decay beyond 2/lr makes x grow geometrically, so divergence takes a while."""
    client = {"lr": 1.0, "weight_decay": 1e12, "steps": 1, "batch_size": 10}
    folder = run(tiny / "a", [0], ["FedBuff x"], rounds=50, client=client)
    (stored,) = collect("tiny", [folder]).runs
    assert stored["diverged"] is True
    assert "accuracy" not in stored
    found = results.Results.of([stored])
    assert (found.labels, found.diverged("FedBuff x"), found.values("FedBuff x", "accuracy")) == ({}, 1, {})


def test_runs_of_another_file_are_refused(tiny: pathlib.Path) -> None:
    table = files.table("tiny")
    cell = Cell(
        "FedBuf x",
        0,
        {k: v for k, v in table.items() if k not in ("axes", "seeds")} | {"algorithm": {"name": "fedbuff"}},
    )
    list(Sweep([cell]).run(tiny / "a", None, lambda cells: [None]))
    with pytest.raises(OffbeatError, match="Did you mean 'FedBuff x'"):
        collect("tiny", [tiny / "a"])


def test_results_of_the_first_format_are_read_and_not_merged(tiny: pathlib.Path) -> None:
    old = {"commit": "abc", "machines": ["m"], "seconds": 5.0, "set": {"rounds": 2}, "diverged": ["CA²FL x"],
           "runs": [{"label": "FedBuff x", "seed": 0, "accuracy": 0.5}]}  # fmt: skip
    files.stored("tiny").parent.mkdir()
    files.stored("tiny").write_text(json.dumps(old))
    found = results.read(files.stored("tiny"))
    assert found is not None
    assert (found.machines, found.commits, found.seconds, found.diverged("CA²FL x")) == (["m"], ["abc"], 5.0, 1)
    assert results.shortened("tiny", found) == ["2 of 4 cells", "2 of 4 rounds"]
    with pytest.raises(OffbeatError, match="collected by an earlier version"):
        store("tiny", [run(tiny / "a", [0], ["FedBuff y"])], merge=True)


def test_time_is_counted_once_where_runs_overlap() -> None:
    assert results.busy([(0, 10), (2, 5), (8, 12), (20, 21)]) == 13


@pytest.mark.parametrize("count", [1, 2, CURVE, CURVE + 1, 1000])
def test_a_stored_curve_has_both_ends(count: int) -> None:
    lines = [{"version": at, "virtual_seconds": 2.0 * at, "accuracy": at / 1000} for at in range(count)]
    kept = [point[0] for point in _curve(lines)]
    assert kept == sorted(set(kept))
    assert (kept[0], kept[-1], len(kept)) == (0, count - 1, min(count, CURVE))
