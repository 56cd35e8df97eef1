"""A run that is killed and resumed equals one that was never killed, byte for byte."""

from __future__ import annotations

import json
import pathlib
import random
import signal
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.experiments import interrupted_at, small
from tests.support.pages import Runner

import offbeat as ob
from offbeat.cli import main
from offbeat.runs import api, checkpoint_pacing
from offbeat.server import checkpoint

CONFIG = """
rounds = 150
executor = "vectorized"  # on a busy machine a trial may choose another one in each process, which rounds differently
[algorithm]
name = "{algorithm}"
[client]
name = "sgd"
lr = 0.1
epochs = 1
batch_size = 16
[scheduler]
concurrency = 10
buffer = 5
[environment]
loss = 0.1
trip_timeout = 6.0
delay = "half-normal"
availability = {{ name = "bernoulli", probability = 0.7 }}
[data]
name = "digits"
clients = 20
partition = {{ name = "dirichlet", alpha = 0.3 }}
[evaluation]
every = 5
"""
# The command line, but with checkpoints so frequent that a kill falls between, into and after them. It kills itself a
# few milliseconds after a given turn (0: never), so that the kill falls into the run however busy the machine is.
PROGRAM = """
import os, random, signal, sys, threading
import offbeat.cli
from offbeat.runs import checkpoint_pacing
checkpoint_pacing.MIN_SECONDS, checkpoint_pacing.MAX_SHARE = 0.01, 0.9
from offbeat.runs.hooks import RunHooks, install_hooks

class Kill(RunHooks):
    def __init__(self, turn, seed):
        self.turns, self.turn, self.delay = 0, turn, random.Random(seed).uniform(0.0, 0.03)
    def before_turn(self, run):
        self.turns += 1
        if self.turns == self.turn:
            threading.Timer(self.delay, os.kill, (os.getpid(), signal.SIGKILL)).start()

install_hooks(Kill(int(sys.argv.pop(1)), int(sys.argv.pop(1))))
offbeat.cli.main()
"""


def results(folder: pathlib.Path) -> tuple[bytes, list[dict[str, Any]], bytes]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    metrics = [{k: v for k, v in line.items() if not k.startswith("wall_")} for line in lines]
    return (folder / "model.safetensors").read_bytes(), metrics, (folder / "updates.npy").read_bytes()


@pytest.mark.parametrize(("algorithm", "seed"), [("mf-ca2fl", 0), ("fedavg", 2)])
def test_a_killed_run_resumes_to_the_same_bytes(
    algorithm: str, seed: int, tmp_path: pathlib.Path, runner: Runner
) -> None:
    toml, program = tmp_path / "run.toml", tmp_path / "program.py"
    program.write_text(PROGRAM)

    def offbeat(kill_at: int, seed: int, *arguments: str) -> int:
        return runner(program, tmp_path, tmp_path / "log", str(kill_at), str(seed), *arguments, "--quiet")

    toml.write_text(CONFIG.format(algorithm=algorithm))
    whole = CliRunner().invoke(main, ["run", str(toml), "--out", str(tmp_path / "whole"), "--quiet"])
    assert whole.exit_code == 0, whole.output
    moments = random.Random(seed)
    command = ["run", str(toml), "--out", str(tmp_path / "killed")]
    for _ in range(3):
        assert offbeat(moments.randint(20, 150), moments.getrandbits(32), *command) == -signal.SIGKILL
        assert not (tmp_path / "killed/summary.json").exists()
        command = ["resume", str(tmp_path / "killed")]
    assert offbeat(0, 0, *command) == 0, (tmp_path / "log").read_text()
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


def test_an_interrupted_run_resumes_identically(tmp_path: pathlib.Path) -> None:
    api.execute(small(), out=tmp_path / "whole")
    interrupted_at(tmp_path / "stopped", 12)
    assert json.loads((tmp_path / "stopped/status.json").read_text())["state"] == "interrupted"
    assert not (tmp_path / "stopped/summary.json").exists()
    result = api.resume(tmp_path / "stopped")
    assert results(tmp_path / "stopped") == results(tmp_path / "whole")
    assert len(result.evaluations) == 11
    with pytest.raises(ob.RunFolderError, match="is finished: 30 rounds"):
        api.resume(tmp_path / "stopped")


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no record", "record torn"])
def test_a_torn_checkpoint_is_detected_and_the_previous_one_used(
    damage: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.execute(small(), out=tmp_path / "whole")
    monkeypatch.setattr(checkpoint_pacing, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint_pacing, "MAX_SHARE", 1e9)
    interrupted_at(tmp_path / "torn", 15)
    folder = tmp_path / "torn/checkpoint"
    bodies = sorted(folder.glob("*.pt"))
    assert len(bodies) == 2
    body, record = bodies[-1], bodies[-1].with_suffix(".json")
    raw = bytearray(body.read_bytes())
    if damage == "truncated":
        body.write_bytes(raw[: len(raw) // 2])
    elif damage == "flipped":
        raw[len(raw) // 2] ^= 1
        body.write_bytes(raw)
    elif damage == "no record":
        record.unlink()
    else:
        record.write_text('{"sha')
    newest = checkpoint.load(folder, "cpu")
    assert newest is not None
    assert newest["recorder"]["counters"]["version"] <= 15
    api.resume(tmp_path / "torn")
    assert results(tmp_path / "torn") == results(tmp_path / "whole")


def test_a_run_without_an_intact_checkpoint_starts_over(tmp_path: pathlib.Path) -> None:
    api.execute(small(), out=tmp_path / "whole")
    interrupted_at(tmp_path / "bare", 12)
    checkpoint.clear(tmp_path / "bare/checkpoint")
    api.resume(tmp_path / "bare")
    assert results(tmp_path / "bare") == results(tmp_path / "whole")


def test_a_folder_without_a_run_is_rejected(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ob.RunFolderError, match=r"is not a run folder: it has no config\.toml"):
        api.resume(tmp_path)
