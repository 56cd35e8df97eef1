"""A run that is killed and resumed equals one that was never killed, byte for byte."""

from __future__ import annotations

import json
import os
import pathlib
import random
import subprocess
import sys
import time
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.experiments import interrupted_at, small

import offbeat as ob
from offbeat.cli import main
from offbeat.runs import api, run
from offbeat.server import checkpoint

CONFIG = """
rounds = 150
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
# The real program, but with checkpoints so often that a kill falls between, into and after them.
PROGRAM = """
import offbeat.cli
import offbeat.runs.run as run
run.CHECKPOINT_SECONDS, run.CHECKPOINT_SHARE = 0.05, 0.9
offbeat.cli.main()
"""


def offbeat(*arguments: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments, "--quiet"], env=environment)


def results(folder: pathlib.Path) -> tuple[bytes, list[dict[str, Any]], bytes]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    metrics = [{k: v for k, v in line.items() if not k.startswith("wall_")} for line in lines]
    return (folder / "model.safetensors").read_bytes(), metrics, (folder / "updates.npy").read_bytes()


@pytest.mark.parametrize(("algorithm", "seed"), [("mf-ca2fl", 0), ("fedavg", 2)])
def test_kill_nine_and_resume(algorithm: str, seed: int, tmp_path: pathlib.Path) -> None:
    toml = tmp_path / "run.toml"
    toml.write_text(CONFIG.format(algorithm=algorithm))
    whole = CliRunner().invoke(main, ["run", str(toml), "--out", str(tmp_path / "whole"), "--quiet"])
    assert whole.exit_code == 0, whole.output
    moments = random.Random(seed)
    kills, command = 0, ["run", str(toml), "--out", str(tmp_path / "killed")]
    while True:
        process = offbeat(*command)
        if kills < 2:
            # Not before there is a folder: killed earlier, there is nothing to resume.
            while process.poll() is None and not (tmp_path / "killed/status.json").exists():
                time.sleep(0.01)
            time.sleep(moments.uniform(0.05, 0.6) + (2.0 if kills else 0.0))  # a resumed one loads torch first
            if process.poll() is None:
                process.kill()
                kills += 1
                process.wait(30)
                if json.loads((tmp_path / "killed/status.json").read_text())["state"] != "finished":
                    command = ["resume", str(tmp_path / "killed")]
                    continue
                break  # killed between its last word and its end
        assert process.wait(120) == 0
        break
    assert kills >= 1, "the run was too quick to be killed"
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


def test_an_interrupted_run_goes_on_identically(tmp_path: pathlib.Path) -> None:
    api.execute(small(), out=tmp_path / "whole")
    interrupted_at(tmp_path / "stopped", 12)
    assert json.loads((tmp_path / "stopped/status.json").read_text())["state"] == "interrupted"
    assert not (tmp_path / "stopped/summary.json").exists()
    result = api.resume(tmp_path / "stopped")
    assert results(tmp_path / "stopped") == results(tmp_path / "whole")
    assert len(result.metrics) == 11
    with pytest.raises(ob.RunFolderError, match="is finished: 30 rounds"):
        api.resume(tmp_path / "stopped")


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no record", "record torn"])
def test_a_torn_checkpoint_is_noticed_and_the_one_before_it_used(
    damage: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.execute(small(), out=tmp_path / "whole")
    monkeypatch.setattr(run, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(run, "CHECKPOINT_SHARE", 1e9)
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


def test_without_any_whole_checkpoint_a_run_starts_over(tmp_path: pathlib.Path) -> None:
    api.execute(small(), out=tmp_path / "whole")
    interrupted_at(tmp_path / "bare", 12)
    checkpoint.clear(tmp_path / "bare/checkpoint")
    api.resume(tmp_path / "bare")
    assert results(tmp_path / "bare") == results(tmp_path / "whole")


def test_what_is_not_a_run_folder_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ob.RunFolderError, match=r"is not a run folder: it has no config\.toml"):
        api.resume(tmp_path)
