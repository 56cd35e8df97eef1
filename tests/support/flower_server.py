"""The server of a deployment on a grid without a network."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from tests.deploy.fake_grid import FakeGrid

from offbeat.flower import app, server
from offbeat.runs.experiment import Experiment
from offbeat.runs.result import RunResult

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
    """Return the TOML of an experiment with four clients."""
    return BASE + more


def grid(text: str, n: int = 4, **options: Any) -> FakeGrid:
    """Return a grid of n nodes that run offbeat's client app for an experiment."""
    return FakeGrid(app.client, [{"partition-id": i} for i in range(n)], {"experiment": json.dumps(text)}, **options)


def serve(experiment: Experiment, grid: FakeGrid, out: pathlib.Path, **options: Any) -> RunResult:
    """Run an experiment with the nodes of a grid and close the grid."""
    try:
        return server.serve(experiment, grid, out, **options)
    finally:
        grid.close()
