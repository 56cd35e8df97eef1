"""Running statistics at the server."""

from __future__ import annotations

import pathlib
import threading

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from offbeat.clients import BUFFERS, Halves, Scaffold, Statistics
from offbeat.experiments import api, config
from offbeat.experiments.drive import alone
from offbeat.experiments.result import Glance
from offbeat.messages import Update


def update(b: Tensor) -> Update:
    return Update(0, 0, 0, torch.zeros(3), 1, 1, 0, extra={BUFFERS: b})


def test_three_arrivals_replace_b_and_fewer_move_it_part_of_the_way() -> None:
    half = Statistics(torch.zeros(2))
    half.start(torch.zeros(3), 5)
    half.stepped()
    assert half.extra()[BUFFERS].tolist() == [0, 0], "nothing has come"
    for i in range(10):
        half.receive(update(torch.tensor([float(i), 1.0])))
    half.stepped()
    assert half.extra()[BUFFERS].tolist() == [4.5, 1.0]
    half.receive(update(torch.tensor([7.5, 2.5])))
    half.stepped()
    torch.testing.assert_close(half.extra()[BUFFERS], torch.tensor([5.5, 1.5]))


def test_several_halves_are_one() -> None:
    x = torch.zeros(3)
    scaffold = Scaffold().server()
    both = Halves([scaffold, Statistics(torch.ones(2))])
    both.start(x, 2)
    assert set(both.extra()) == {"c", BUFFERS}
    both.receive(Update(0, 0, 0, x, 1, 1, 0, extra={"change": x + 2, BUFFERS: torch.zeros(2)}))
    both.stepped()
    twin = Halves([Scaffold().server(), Statistics(torch.ones(2))])
    twin.start(x, 2)
    twin.load_state_dict(both.state_dict())
    assert twin.extra()["c"].tolist() == [1, 1, 1]
    torch.testing.assert_close(twin.extra()[BUFFERS], torch.tensor([2 / 3, 2 / 3]))


@pytest.mark.parametrize("client", ["sgd", "scaffold"])
def test_a_model_with_batch_norm_learns_is_saved_and_resumes(tmp_path: pathlib.Path, client: str) -> None:
    experiment = config.parse(
        {
            "rounds": 30,
            "executor": "sequential",
            "algorithm": {"name": "fedbuff"},
            "dispatch": {"concurrency": 6, "buffer": 3},
            "data": {"name": "digits", "clients": 12},
            "model": {"name": "convmixer", "norm": "batch", "dim": 8, "depth": 1, "kernel": 3},
            "client": {"name": client, "lr": 0.1, "batch_size": 16},
            "evaluation": {"every": 10},
        }
    )
    whole = api.execute(experiment, out=tmp_path / "whole")
    assert whole.metrics[-1]["loss"] < 0.9 * whole.metrics[0]["loss"]
    saved = load_file(tmp_path / "whole/model.safetensors")
    means = torch.cat([value for name, value in saved.items() if name.endswith("running_mean")])
    spreads = torch.cat([value for name, value in saved.items() if name.endswith("running_var")])
    assert means.abs().max() > 0.01, "the statistics of training, not the initial ones"
    assert spreads.min() > 0

    stop = threading.Event()

    def watch(glance: Glance) -> None:
        if glance.tally.version >= 12:
            stop.set()

    assert alone(api.begin(experiment, stop, out=tmp_path / "cut", watch=watch)).interrupted
    assert api.resume(tmp_path / "cut").accuracy == whole.accuracy
    for name in ("model.safetensors", "updates.npy"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
