"""The server's side, on a grid without a network."""

from __future__ import annotations

import json
import pathlib
import tomllib
from typing import Any

import pytest
import torch
from tests.deploy.double import Double, unreliable

from offbeat.deploy import apps
from offbeat.deploy.server import replay, serve
from offbeat.experiments.config import parse

BASE = """
rounds = 16
seed = 3
[data]
name = "digits"
clients = 4
[client]
name = "sgd"
lr = 0.1
epochs = 2
batch_size = 32
"""


def toml(more: str) -> str:
    return BASE + more


def grid(text: str, n: int = 4, **more: Any) -> Double:
    return Double(apps.client, [{"partition-id": i} for i in range(n)], {"experiment": json.dumps(text)}, **more)


@pytest.mark.parametrize("algorithm", ["fedbuff", "ca2fl", "mifa"])
def test_a_deployment_learns_and_is_replayed_to_the_last_bit(algorithm: str, tmp_path: pathlib.Path) -> None:
    text = toml(
        f'[algorithm]\nname = "{algorithm}"\neta = 0.5\n[dispatch]\nname = "buffered"\nconcurrency = 4\nbuffer = 2\n'
    )
    double = grid(text)
    result = serve(parse(tomllib.loads(text)), double, tmp_path / "run")
    assert result.accuracy > 0.85
    again = replay(tmp_path / "run")
    assert again.same
    assert torch.equal(again.x, result.x)
    assert (again.version, again.updates) == (16, 32)
    assert double.most == 1, "one job in flight a node"


def test_failures_free_the_client_and_are_logged(tmp_path: pathlib.Path) -> None:
    text = toml('[algorithm]\nname = "fedbuff"\n[dispatch]\nname = "keep-busy"\nconcurrency = 4\nbuffer = 2\n')
    result = serve(parse(tomllib.loads(text)), grid(text, fate=unreliable(0, 0.4)), tmp_path / "run")
    assert result.summary["lost"] > 3
    lines = [json.loads(line) for line in (tmp_path / "run" / "trips.jsonl").read_text().splitlines()]
    reasons = {line["reason"] for line in lines if "lost" in line}
    assert "the node is gone: by chance" in reasons
    assert replay(tmp_path / "run").same
