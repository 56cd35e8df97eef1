"""Running statistics at the server."""

from __future__ import annotations

import pathlib
import threading

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from offbeat.client.rules import Scaffold
from offbeat.messages import Update
from offbeat.runs import api, config
from offbeat.runs.drive import alone
from offbeat.runs.result import ProgressSnapshot
from offbeat.server.extensions import BUFFERS, CompositeExtension, RunningStatistics


def update(b: Tensor) -> Update:
    return Update(0, 0, 0, torch.zeros(3), 1, 1, 0, extra={BUFFERS: b})


def test_three_arrivals_replace_b_and_fewer_move_it_part_of_the_way() -> None:
    extension = RunningStatistics(torch.zeros(2))
    extension.start(torch.zeros(3), 5)
    extension.stepped()
    assert extension.extra()[BUFFERS].tolist() == [0, 0], "nothing has come"
    for i in range(10):
        extension.receive(update(torch.tensor([float(i), 1.0])))
    extension.stepped()
    assert extension.extra()[BUFFERS].tolist() == [4.5, 1.0]
    extension.receive(update(torch.tensor([7.5, 2.5])))
    extension.stepped()
    torch.testing.assert_close(extension.extra()[BUFFERS], torch.tensor([5.5, 1.5]))


def test_a_composite_extension_behaves_like_its_parts() -> None:
    x = torch.zeros(3)
    scaffold = Scaffold().server()
    both = CompositeExtension([scaffold, RunningStatistics(torch.ones(2))])
    both.start(x, 2)
    assert set(both.extra()) == {"c", BUFFERS}
    both.receive(Update(0, 0, 0, x, 1, 1, 0, extra={"change": x + 2, BUFFERS: torch.zeros(2)}))
    both.stepped()
    twin = CompositeExtension([Scaffold().server(), RunningStatistics(torch.ones(2))])
    twin.start(x, 2)
    twin.load_state_dict(both.state_dict())
    assert twin.extra()["c"].tolist() == [1, 1, 1]
    torch.testing.assert_close(twin.extra()[BUFFERS], torch.tensor([2 / 3, 2 / 3]))


def test_an_extension_never_changes_an_update() -> None:
    extension = CompositeExtension([Scaffold().server(), RunningStatistics(torch.ones(2))])
    extension.start(torch.zeros(3), 2)
    received: list[tuple[Tensor, Tensor]] = []
    for i in range(6):
        extra = {"change": torch.full((3,), 1.0 + i), BUFFERS: torch.full((2,), 2.0 + i)}
        delta = torch.full((3,), 3.0 + i)
        received += [(value, value.clone()) for value in (delta, *extra.values())]
        extension.receive(Update(i, 0, 0, delta, 1, 1, 0, extra=extra))
        if i % 2:
            extension.stepped()
    assert all(torch.equal(value, before) for value, before in received)


@pytest.mark.parametrize("client", ["sgd", "scaffold"])
def test_a_model_with_batch_norm_learns_is_saved_and_resumes(tmp_path: pathlib.Path, client: str) -> None:
    experiment = config.parse(
        {
            "rounds": 30,
            "executor": "sequential",
            "algorithm": {"name": "fedbuff"},
            "scheduler": {"concurrency": 6, "buffer": 3},
            "data": {"name": "digits", "clients": 12},
            "model": {"name": "convmixer", "norm": "batch", "dim": 8, "depth": 1, "kernel": 3},
            "client": {"name": client, "lr": 0.1, "batch_size": 16},
            "evaluation": {"every": 10},
        }
    )
    whole = api.execute(experiment, out=tmp_path / "whole")
    assert whole.evaluations[-1]["loss"] < 0.9 * whole.evaluations[0]["loss"]
    saved = load_file(tmp_path / "whole/model.safetensors")
    means = torch.cat([value for name, value in saved.items() if name.endswith("running_mean")])
    spreads = torch.cat([value for name, value in saved.items() if name.endswith("running_var")])
    assert means.abs().max() > 0.01, "the statistics of training, not the initial ones"
    assert spreads.min() > 0

    stop = threading.Event()

    def watch(snapshot: ProgressSnapshot) -> None:
        if snapshot.counters.version >= 12:
            stop.set()

    assert alone(api.begin(experiment, stop, out=tmp_path / "cut", watch=watch)).interrupted
    assert api.resume(tmp_path / "cut").accuracy == whole.accuracy
    for name in ("model.safetensors", "updates.npy"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
