"""The command `reproduce` from a user's point of view."""

from __future__ import annotations

import json
import pathlib

import pytest
from click.testing import CliRunner
from reproductions.collect import store
from tests.support.reproductions import tiny

from offbeat.cli import main

__all__ = ["tiny"]


def offbeat(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    return result.output


def rows(output: str) -> dict[str, list[str]]:
    """Return the words of the table's lines by their cell."""
    lines = [line.split() for line in output.splitlines() if line.strip().startswith(("FedBuff", "CA²FL"))]
    return {" ".join(words[:2]): words[2:] for words in lines}


def test_a_reproduction_is_run_and_compared(tiny: pathlib.Path) -> None:
    output = offbeat("reproduce", "tiny")
    assert "Tiny, Table 1\n" in output
    assert "accuracy (%); ± over the seeds" in output
    assert len(list(pathlib.Path("runs/tiny").rglob("summary.json"))) == 8, "four cells, the two seeds of the file"
    found = rows(output)
    assert list(found) == ["FedBuff x", "FedBuff y", "CA²FL x", "CA²FL y"]
    assert all(words[2] == "±" and words[4] == "2" for words in found.values())
    paper, mean, *_, gap = found["CA²FL y"]
    assert paper == "75.0"
    assert float(gap) == pytest.approx(float(mean) - 75, abs=0.11)
    assert found["FedBuff y"][0] == "—", "the paper has no figure"
    assert len(found["FedBuff y"]) == 5, "no difference, then"


def test_parts_and_seeds_share_a_folder_and_the_command_resumes(tiny: pathlib.Path) -> None:
    first = offbeat("reproduce", "tiny", "--part", "x", "--seeds", "3", "--out", "r")
    assert "(part: 2 of 4 cells)" in first
    assert rows(first)["CA²FL y"] == ["75.0", "not", "run"]
    assert sorted(path.name for path in pathlib.Path("r").iterdir() if path.is_dir()) == ["CA²FL-x", "FedBuff-x"]
    offbeat("reproduce", "tiny", "--part", "CA²FL y", "--seeds", "3", "--out", "r")
    last = offbeat("reproduce", "tiny", "--part", "x", "--seeds", "4", "--out", "r")
    assert [words[-2] for words in rows(last).values() if "not" not in words] == ["2", "2", "1"]
    runs = {path: path.stat().st_mtime_ns for path in pathlib.Path("r").rglob("summary.json")}
    assert rows(offbeat("reproduce", "tiny", "--part", "x", "--seeds", "4", "--out", "r")) == rows(last)
    assert {path: path.stat().st_mtime_ns for path in runs} == runs, "nothing is run twice"
    assert rows(offbeat("reproduce", "tiny", "--show", "--out", "r")) == rows(last)


def test_settings_count_for_every_cell(tiny: pathlib.Path) -> None:
    output = offbeat("reproduce", "tiny", "--rounds", "2", "--seeds", "0", "--set", "client.lr=0.2", "--out", "r")
    assert "(part: 2 of 3 to 4 rounds)" in output or "2 of 4 rounds" in output
    summaries = [json.loads(path.read_text()) for path in pathlib.Path("r").rglob("summary.json")]
    assert [summary["rounds"] for summary in summaries] == [2] * 4, "also for the variant with a number of its own"
    assert "another experiment" in offbeat("reproduce", "tiny", "--seeds", "0", "--out", "r", status=2)


def test_what_is_stored_is_listed_and_shown(tiny: pathlib.Path) -> None:
    assert "no runs" in offbeat("reproduce")
    assert "run it with: offbeat reproduce tiny" in offbeat("reproduce", "tiny", "--show", status=2)
    output = offbeat("reproduce", "tiny", "--part", "FedBuff", "--out", "r")
    store("tiny", [pathlib.Path("r")])
    listed = " ".join(offbeat("reproduce").split())
    assert "tiny Tiny, Table 1 4 runs, 2 seeds; 2 of 4 cells" in listed
    assert rows(offbeat("reproduce", "tiny", "--show")) == rows(output)


def test_mistakes(tiny: pathlib.Path) -> None:
    assert "Did you mean 'tiny'?" in offbeat("reproduce", "tyni", status=2)
    assert "--part: no cell is or contains 'CA2FL x'; valid: " in offbeat(
        "reproduce", "tiny", "--part", "CA2FL x", status=2
    )
    assert "--seeds: 'x': expected integers" in offbeat("reproduce", "tiny", "--seeds", "0,x", status=2)
    assert not list(tiny.iterdir()), "nothing was written"
