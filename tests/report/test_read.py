"""Reading run folders that are complete, half-written, broken or hostile."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from offbeat.errors import RunFolderError
from offbeat.report import read
from offbeat.runs.folder import UPDATE


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


def test_broken_runs_state_the_reason_and_the_others_are_read(mixed: pathlib.Path) -> None:
    records = found(mixed)
    assert records["torn"].state == "finished"
    assert records["torn"].metrics == records["sweep/ca2fl/seed-0"].metrics
    for name, reason in (
        ("garbled", "is not an evaluation"),
        ("nameless", "config.toml cannot be read"),
        ("cut", "summary.json is not valid JSON"),
    ):
        assert records[name].state == "broken"
        assert reason in (records[name].problem or "")
    assert len(records["cut"].log()) == 0
    assert records["lossy"].state == "finished"


def test_a_run_with_status_running_but_no_process_was_killed(mixed: pathlib.Path) -> None:
    assert read.read(mixed / "killed").state == "killed"
    with (mixed / "killed" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read.read(mixed / "killed").state == "running"


def test_experiments_with_the_same_name_are_distinguished(runs: pathlib.Path) -> None:
    records = read.records([runs / "lossy", runs / "sweep" / "fedbuff" / "seed-0", runs / "cafga"])
    assert [record.label for record in records] == ["fedbuff", "FEDBUFF", "cafga"]
    cafga = dataclasses.replace(read.read(runs / "cafga"), label="fedbuff")
    assert [record.label for record in read.distinguish([read.read(runs / "lossy"), cafga])] == [
        "fedbuff (lossy)",
        "fedbuff (cafga)",
    ]


def test_seeds_of_two_sweeps_with_the_same_labels_stay_together(runs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for name in ("A", "B"):
        shutil.copytree(runs / "sweep", tmp_path / name)
        for file in (tmp_path / name).rglob("config.toml"):
            file.write_text(file.read_text().replace("rounds = 12", f"rounds = {12 if name == 'A' else 13}"))
    labels = [record.label for record in read.records([tmp_path])]
    assert labels == [
        f"{kind.upper()} ({name}/{kind})" for name in ("A", "B") for kind in ("fedbuff", "ca2fl") for _ in (0, 1)
    ]


def test_no_run_at_all(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RunFolderError, match="no run"):
        read.records([tmp_path])


def test_nothing_outside_a_folder_is_read(runs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Links, pipes, devices and folders in the place of files are reported, and reading never blocks."""
    secret = tmp_path / "secret"
    secret.write_text("do not show\n")
    for number, name in enumerate(
        ("config.toml", "status.json", "metrics.jsonl", "summary.json", "updates.npy", "setting.json")
    ):
        for kind in ("link", "pipe", "folder"):
            run = tmp_path / f"{kind}-{number}"
            shutil.copytree(runs / "lossy", run)
            (run / name).unlink()
            (run / ".lock").mkdir()
            if kind == "link":
                (run / name).symlink_to(secret)
            elif kind == "pipe":
                os.mkfifo(run / name)
            else:
                (run / name).mkdir()
            record = read.read(run)
            assert record.state == "broken"
            assert f"{name} cannot be read" in (record.problem or "")
            assert "do not show" not in repr(record)
            assert len(record.log()) == (0 if name == "updates.npy" else len(read.read(runs / "lossy").log()))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.toml", "a = " + "[" * 100_000),
        ("config.toml", "a = " + "9" * 5000),
        ("status.json", "[" * 100_000),
        ("status.json", '"text"'),
        ("summary.json", "[1]"),
        ("setting.json", '{"partition": [[1], [2, 3]], "clients": 3}'),
        ("setting.json", '{"network": {}, "sizes": "many"}'),
        ("setting.json", '{"attackers": [-1, "everybody"]}'),
        ("setting.json", '{"plan": [[1, 2]], "period": 1, "exponent": 1}'),
        ("metrics.jsonl", '{"version": NaN, "virtual_seconds": 1, "bytes_up": 1, "accuracy": 1}\n'),
        ("metrics.jsonl", '{"version": 1, "virtual_seconds": 1, "bytes_up": 1, "accuracy": "high"}\n'),
        ("metrics.jsonl", "[]\n"),
    ],
)
def test_invalid_options_are_reported(runs: pathlib.Path, tmp_path: pathlib.Path, name: str, text: str) -> None:
    shutil.copytree(runs / "lossy", tmp_path / "run")
    (tmp_path / "run" / name).write_text(text)
    record = read.read(tmp_path / "run")
    assert record.state == "broken"
    assert name in (record.problem or "")


def test_rows_of_a_log_that_cannot_be_are_left_out(runs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    shutil.copytree(runs / "lossy", tmp_path / "run")
    log = np.load(tmp_path / "run" / "updates.npy")
    log["client"][0], log["client"][1], log["time"][2], log["staleness"][3], log["status"][4] = (
        2**31 - 1,
        -1,
        np.nan,
        -5,
        250,
    )
    np.save(tmp_path / "run" / "updates.npy", log)
    assert len(read.read(tmp_path / "run").log()) == len(log) - 5


@pytest.mark.parametrize(
    "header",
    [
        "(" * 9000,
        "{1: 2}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3,)}",
        "{'descr': %s, 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': %s, 'fortran_order': False, 'shape': (10**18,)}",
        "{'descr': %s, 'fortran_order': False, 'shape': ()}",
    ],
)
def test_a_hostile_header_of_the_update_log_is_reported(
    runs: pathlib.Path, tmp_path: pathlib.Path, header: str
) -> None:
    shutil.copytree(runs / "lossy", tmp_path / "run")
    text = header.replace("%s", repr(UPDATE.descr)).encode()
    log = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(100)
    (tmp_path / "run" / "updates.npy").write_bytes(log)
    record = read.read(tmp_path / "run")
    assert (record.state, len(record.log())) == ("broken", 0)
    assert (record.problem or "").startswith("updates.npy cannot be read: ")


def test_reports_need_no_torch() -> None:
    modules = "offbeat.report.html, offbeat.report.plots, offbeat.report.tables, offbeat.report.export"
    program = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_names_are_one_line_without_control_characters(runs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    shutil.copytree(runs / "lossy", tmp_path / "run")
    (tmp_path / "run" / "status.json").write_text(json.dumps({"state": "\x1b[31mred", "error": "a\nb\ud800"}))
    record = read.read(tmp_path / "run")
    assert record.state == "\ufffd[31mred"
    assert record.problem == "a\ufffdb?"


def test_runs_are_in_the_order_of_their_sweep(runs: pathlib.Path) -> None:
    found = [(record.label, record.seed) for record in read.records([runs / "sweep"])]
    assert found == [("FEDBUFF", 0), ("FEDBUFF", 1), ("CA2FL", 0), ("CA2FL", 1)]
