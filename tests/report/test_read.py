"""Run folders as they are found: whole, half-written, broken, hostile."""

from __future__ import annotations

import fcntl
import pathlib

import pytest

from offbeat.errors import RunFolderError
from offbeat.report import read


def found(root: pathlib.Path) -> dict[str, read.Record]:
    return {record.path.relative_to(root).as_posix(): record for record in read.records([root])}


def test_a_whole_run(runs: pathlib.Path) -> None:
    record = found(runs)["sweep/ca2fl/seed-1"]
    assert (record.label, record.seed, record.state, record.problem) == ("CA2FL", 1, "finished", None)
    assert record.metrics[-1]["accuracy"] == record.summary["accuracy"]
    assert len(record.log()) >= record.summary["updates"]
    assert record.clients == 12
    assert sum(record.setting["sizes"]) == sum(map(sum, record.setting["partition"]))


def test_runs_are_found_below_and_links_are_not_followed(mixed: pathlib.Path) -> None:
    places = {path.relative_to(mixed).as_posix() for path in read.find(mixed)}
    assert {"sweep/fedbuff/seed-0", "lossy", "torn"} <= places
    assert not any(place.startswith("passwd") for place in places)
    assert list(read.find(mixed / "nowhere")) == []


def test_what_is_broken_says_why_and_the_others_are_read(mixed: pathlib.Path) -> None:
    records = found(mixed)
    assert records["torn"].state == "finished"
    assert records["torn"].metrics == records["sweep/ca2fl/seed-0"].metrics
    for name, reason in (
        ("garbled", "no evaluation"),
        ("nameless", "config.toml cannot be read"),
        ("cut", "summary.json is no JSON"),
    ):
        assert records[name].state == "broken"
        assert reason in (records[name].problem or "")
    assert len(records["cut"].log()) == 0
    assert records["lossy"].state == "finished"


def test_a_run_that_says_running_and_is_not_was_killed(mixed: pathlib.Path) -> None:
    assert read.read(mixed / "killed").state == "killed"
    with (mixed / "killed" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read.read(mixed / "killed").state == "running"


def test_experiments_of_one_name_are_told_apart(runs: pathlib.Path) -> None:
    records = read.records([runs / "lossy", runs / "sweep" / "fedbuff" / "seed-0", runs / "cafga"])
    assert [record.label for record in records] == ["fedbuff", "FEDBUFF", "cafga"]
    twice = read.named([read.read(runs / "lossy"), read._with_label(read.read(runs / "cafga"), "fedbuff")])
    assert [record.label for record in twice] == ["fedbuff (lossy)", "fedbuff (cafga)"]


def test_no_run_at_all(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RunFolderError, match="no run"):
        read.records([tmp_path])
