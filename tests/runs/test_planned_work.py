"""A user's own algorithm that plans its clients' work runs from Python, from TOML and on Flower."""

from __future__ import annotations

import pathlib
import tomllib
from dataclasses import dataclass

import numpy as np
import torch
from tests.support.flower_server import grid, serve

import offbeat as ob
from offbeat.algorithms.workload import Device, Workload
from offbeat.flower.server import replay
from offbeat.runs.api import execute
from offbeat.runs.config import parse
from offbeat.runs.folder import read_updates
from offbeat.vectors import Layout

CLIENTS = 4


@dataclass(kw_only=True)
class Planned(ob.FedBuff):
    """Even clients perform one step and send a tenth of Δ; odd clients perform three steps and send half of it."""

    longest: int = 3

    def workload(self, device: Device) -> Workload:
        """Return the work of a client by its number."""
        even = device.client % 2 == 0
        return Workload(1 if even else self.longest, compression_rate=0.1 if even else 0.5)


TOML = """
rounds = 8
executor = "sequential"
[data]
name = "digits"
clients = 4
[model]
name = "lr"
[algorithm]
name = "tests.runs.test_planned_work:Planned"
longest = 3
[client]
name = "sgd"
lr = 0.1
epochs = 2
batch_size = 32
[scheduler]
name = "buffered"
concurrency = 4
buffer = 2
[compression.upload]
name = "top-k"
[evaluation]
every = 8
"""


def check_updates(folder: pathlib.Path, header: int) -> None:
    """Check steps and bytes of every update against the plan; a payload also has a header of at most that size."""
    layout = Layout(("weight", "bias"), (torch.Size((10, 64)), torch.Size((10,))))
    small, large = (ob.codecs.TopK().size(layout, rate) for rate in (0.1, 0.5))
    rows = read_updates(folder)
    assert set(rows["client"] % 2) == {0, 1}, "both kinds of clients must have taken part"
    assert np.array_equal(rows["steps"], np.where(rows["client"] % 2 == 0, 1, 3))
    beyond = rows["bytes"] - np.where(rows["client"] % 2 == 0, small, large)
    assert 0 <= beyond.min() <= beyond.max() <= header < large - small


def test_planned_work_in_simulation(tmp_path: pathlib.Path) -> None:
    from_toml = execute(parse(tomllib.loads(TOML)), out=tmp_path / "toml")
    check_updates(tmp_path / "toml", header=0)
    from_python = ob.run(
        data=ob.datasets.Digits(), clients=CLIENTS, model=ob.models.LR(), algorithm=Planned(), rounds=8,
        client=ob.SGD(lr=0.1, epochs=2, batch_size=32), scheduler=ob.Buffered(concurrency=4, buffer=2),
        compression=ob.Compression(upload=ob.codecs.TopK()), executor="sequential", evaluation=8,
        out=tmp_path / "python",
    )  # fmt: skip
    assert torch.equal(from_python.x, from_toml.x)


def test_planned_work_on_flower(tmp_path: pathlib.Path) -> None:
    serve(parse(tomllib.loads(TOML)), grid(TOML), tmp_path / "run")
    check_updates(tmp_path / "run", header=250)
    assert replay(tmp_path / "run").same
