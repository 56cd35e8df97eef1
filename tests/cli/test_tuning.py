"""The command `tune`."""

from __future__ import annotations

import pathlib

import pytest
from click.testing import CliRunner, Result

from offbeat.cli import main

TOML = """
rounds = 4
seeds = [1, 2]
[scheduler]
concurrency = 6
buffer = 3
[data]
name = "digits"
clients = 10
[[variants]]
label = "FedBuff"
algorithm = "fedbuff"
[[variants]]
label = "CA²FL"
algorithm = "ca2fl"
[tune]
trials = 3
space.client.lr = { log_uniform = [0.01, 1] }
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("study.toml").write_text(TOML, encoding="utf-8")


def offbeat(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_a_search_ends_with_a_table_files_and_a_comparison() -> None:
    result = offbeat("tune", "study.toml", "--out", "t", "--compare", "--quiet")
    assert result.exit_code == 0, result.output
    for text in ("FedBuff trial-", "CA²FL trial-", "client.lr", "best    t/best/FedBuff.toml", "± over 2 seeds"):
        assert text in result.output
    assert {path.name for path in pathlib.Path("t/comparison/CA²FL").iterdir()} == {"seed-1", "seed-2"}
    assert pathlib.Path("t/trials.png").exists()
    again = offbeat("tune", "study.toml", "--out", "t", "--quiet")
    assert again.exit_code == 0
    assert result.output.startswith(again.output), "the same trials, nothing compared"


def test_the_best_runs_as_it_is() -> None:
    assert offbeat("tune", "study.toml", "--out", "t", "--trials", "2", "--quiet").exit_code == 0
    result = offbeat("run", "t/best/FedBuff.toml", "--out", "best", "--quiet")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--compare", "0-2"), "the search used seed 0"),
        (("--method", "grid"), "client.lr: a grid needs a list"),
        (("--trials", "0"), "tune.trials: 0"),
        (("--set", "tune.trials=-1"), "tune.trials: -1"),
        (("--set", "tune.spcae=1"), "Did you mean 'space'"),
    ],
)
def test_mistakes_are_found_before_anything_is_run(arguments: tuple[str, ...], message: str) -> None:
    result = offbeat("tune", "study.toml", "--out", "t", *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert not pathlib.Path("t").exists()


@pytest.mark.parametrize("command", ["sweep", "run"])
def test_other_commands_refuse_a_search(command: str) -> None:
    text = TOML[: TOML.index("[[variants]]")].replace("seeds = [1, 2]", "") + TOML[TOML.index("[tune]") :]
    pathlib.Path("study.toml").write_text(text, encoding="utf-8")
    result = offbeat(command, "study.toml")
    assert result.exit_code == 2
    assert "run it with: offbeat tune" in result.output


def test_the_partition_of_a_search_is_shown() -> None:
    assert "10 clients" in offbeat("partition", "study.toml").output
