"""A campaign finds planted bugs and no others."""

from __future__ import annotations

import itertools
import json
import pathlib
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.planted_bugs import BUGS, write

import offbeat as ob
from offbeat.cli import main
from offbeat_chaos import invariants
from offbeat_chaos.campaign import Campaign
from offbeat_chaos.faults import DECK, draw_faults
from offbeat_chaos.kills import Command

EQUAL: dict[str, float] = dict.fromkeys(("turn", "clock", "checkpoint", "file", "full disk", "read-only"), 10.0)


def campaign(file: pathlib.Path, kills: int, seed: int = 0) -> Campaign:
    return Campaign(Command(str(file)), 0, None, file.parent / "out", kills, seed)


def broken(found: dict[str, Any]) -> set[str]:
    return {each["name"] for each in found["invariants"] if not each["held"]}


def test_a_campaign_from_the_command_line(file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    words = ["chaos", str(file), "--kills", str(len(DECK)), "--seed", "3", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out/chaos.json").read_text())
    assert found["held"]
    assert not found["broken"]
    assert all(each["checks"] and each["held"] for each in found["invariants"])
    kinds = {kill["kind"] for run in found["runs"] for kill in run["kills"]}
    assert {"checkpoint", "full disk", "read-only", "SIGTERM turn"} <= kinds
    assert found["kills"] == len(DECK)
    messages = found["messages"]
    assert messages["faults"]["corrupted"]
    assert messages["faults"]["vanished"]
    assert messages["refused"]["unsolicited"]
    assert list((tmp_path / "out").iterdir()) == [tmp_path / "out/chaos.json"]


def test_a_campaign_repeats_its_kills_at_the_same_places(file: pathlib.Path) -> None:
    """This includes a single run, as the printed command repeats it; kills by the clock depend on the machine."""
    seed = next(s for s in range(100) if all(f.kind != "clock" for f in itertools.islice(draw_faults(s, 1, EQUAL), 3)))
    first = campaign(file, 3, seed).run(messages=False)["runs"][0]["kills"]
    again = campaign(file, 3, seed).run(only=1, messages=False)["runs"][0]["kills"]
    assert len(first) == 3
    assert again == first


def test_a_folder_of_another_program_is_not_touched(file: pathlib.Path) -> None:
    mine = file.parent / "out" / "run-1"
    mine.mkdir(parents=True)
    with pytest.raises(ob.RunFolderError, match=r"not of a campaign"):
        campaign(file, 3).run()
    assert mine.is_dir()


@pytest.mark.parametrize(
    ("bug", "invariant", "kills"),
    [
        ("a trip that is lost has no row", invariants.LEDGER, 10),
        ("no guard against a second update", invariants.ONCE, 0),
        ("a lost client is never free", invariants.BUSY, 3),
        ("a gate that is open", invariants.DAMAGED, 0),
        ("what is not answered shakes the model", invariants.ACCURACY, 0),
        ("no message for a disk that is full", invariants.REPORTED, 10),
    ],
)
def test_planted_bugs_are_found(bug: str, invariant: str, kills: int, tmp_path: pathlib.Path) -> None:
    found = campaign(write(tmp_path, BUGS[bug]), kills).run()
    assert invariant in broken(found), found["broken"]
    assert not found["held"]


def test_a_checkpoint_that_forgets_something_is_found(tmp_path: pathlib.Path) -> None:
    file = write(tmp_path, algorithm="forgetful:Rule")
    words = ["chaos", str(file), "--kills", "5", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(main, words, env={"OFFBEAT_DATA": None})
    assert result.exit_code == 1, result.output
    assert f"violated: {invariants.EXACT}" in result.stderr
    assert f"reproduce with: offbeat chaos {file} --seed 0 --only 1 --kills 5" in result.stderr


def test_the_p_value_is_an_exact_permutation_test() -> None:
    """Of the 20 ways to divide six runs, one, all or two show a loss as large as the observed one."""
    assert invariants.p_value([3.0, 2.0, 1.0], [0.0, -1.0, -2.0]) == 1 / 20
    assert invariants.p_value([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]) == 1
    assert invariants.p_value([5.0, 4.0, 2.0], [3.0, 1.0, 0.0]) == 2 / 20
    assert invariants.p_value([0.0, 0.0, 0.0], [1.0, 1.0, 1.0]) == 1
