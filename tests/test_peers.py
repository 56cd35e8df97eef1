"""The comparison with other frameworks: offbeat's side runs, and the table shows the measurements."""

from __future__ import annotations

import importlib
import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner

import offbeat.cli

PEERS = pathlib.Path(__file__).resolve().parents[1] / "benchmarks" / "peers"


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbuff"])
def test_offbeats_side_trains_and_prints_a_line(algorithm: str) -> None:
    small = ["--users", "30", "--samples", "4", "--batch-size", "2", "--cohort", "20", "--rounds", "3", "--warmup", "1"]
    done = subprocess.run(
        [
            sys.executable,
            PEERS / "offbeat_peer.py",
            "--model",
            "lr",
            "--algorithm",
            algorithm,
            "--threads",
            "1",
            *small,
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout)
    assert line["client_steps"] == 3 * 20 * 2
    assert line["client_steps_per_second"] == pytest.approx(line["client_steps"] / line["seconds"])
    assert line["loss_after"] < line["loss_before"]


def line(name: str, turn: int, speed: float) -> dict[str, Any]:
    return {
        "name": name, "turn": turn, "client_steps_per_second": speed, "model": "lr", "algorithm": "fedavg",
        "version": "1", "processes": 1, "threads": None, "loss_before": 2.0, "loss_after": 1.0,
    }  # fmt: skip


def test_ratios_are_taken_within_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PEERS))
    run = importlib.import_module("run")
    lines = [line("offbeat", 0, 100), line("slow", 0, 50), line("offbeat", 1, 10), line("slow", 1, 10)]
    text = run.table([*lines, {"name": "absent", "failed": "does not install: no such version"}])
    assert "| slow 1 | 1 × own choice | 30 (10 – 50) | 1.50 (1.00 – 2.00) | 2.0000 → 1.0000 |" in text
    assert "absent: does not install: no such version" in text
    assert run.agreement(lines)[1]
    assert not run.agreement([*lines, line("wrong", 0, 1) | {"loss_after": 1.1}])[1]


def test_an_installed_package_says_where_the_scripts_are(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = importlib.import_module("offbeat.cli.bench")
    monkeypatch.setattr(commands, "__file__", str(tmp_path / "lib" / "offbeat" / "cli" / "bench.py"))
    result = CliRunner().invoke(offbeat.cli.main, ["bench", "peers", "--models", "lr"])
    assert result.exit_code == 2
    assert "clone the repository" in result.output
