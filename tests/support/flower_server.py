"""A deployment's server on a grid without a network."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from tests.deploy.double import Double

from offbeat.flower import app, server
from offbeat.runs.experiment import Experiment
from offbeat.runs.result import Result

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
    return Double(app.client, [{"partition-id": i} for i in range(n)], {"experiment": json.dumps(text)}, **more)


def serve(experiment: Experiment, double: Double, out: pathlib.Path, **more: Any) -> Result:
    try:
        return server.serve(experiment, double, out, **more)
    finally:
        double.close()
