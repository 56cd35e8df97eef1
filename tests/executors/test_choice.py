"""Which executors can run a model, and which one `auto` chooses."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.support.executors import RULES, built, work
from torch import Tensor, nn

import offbeat as ob
from offbeat.client.context import TrainingContext
from offbeat.client.runtime import ClientRuntime
from offbeat.data import PartitionedDataset, Synthetic
from offbeat.executors import Sequential, choice, choose
from offbeat.executors.base import Task, TrainingOutcome
from offbeat.models import LR

CPU = torch.device("cpu")


def settings(**more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "data": Synthetic(examples=300, test_examples=60, features=12, classes=3),
        "clients": 6,
        "model": LR(),
        "algorithm": ob.FedBuff(),
        "client": ob.SGD(lr=0.1, epochs=1, batch_size=8),
        "scheduler": ob.Buffered(concurrency=4, buffer=2),
        "rounds": 20,
        "evaluation": 5,
    }
    return base | more


class Scaled(nn.Module):
    """A module with a parameter of its own."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(12, 3), nn.Parameter(torch.tensor(1.0))
        self.register_buffer("shift", torch.ones(12))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scale * self.layer(x + self.shift)
        return out


class Projected(nn.Module):
    """A module that multiplies with a matrix of its own, which has no stacked form."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(3, 12, generator=torch.Generator().manual_seed(0)) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.matrix)


class Mixing(nn.Module):
    """An example's output depends on the rest of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.layer(x)
        return z - z.mean(dim=0)


def test_a_model_that_mixes_its_batch_is_not_stacked() -> None:
    """Padding has weight zero in the loss, but it would count in the batch's statistics."""
    dataset = Synthetic(examples=300, test_examples=60, features=12, classes=3).load(pathlib.Path())
    for module in (Mixing(), nn.Sequential(nn.BatchNorm1d(12, track_running_stats=False), nn.Linear(12, 3))):
        w = ClientRuntime(
            TrainingContext(module, PartitionedDataset.of(dataset, [range(10), range(10, 23)]), ob.SGD(), CPU)
        )
        assert choose("auto", w, 4, 10_000)[0] in ("sequential", "processes")
        with pytest.raises(ob.ConfigError, match="mixes the examples of a batch"):
            choose("vectorized", w, 4, 10_000)
    dropout = nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    w = ClientRuntime(
        TrainingContext(dropout, PartitionedDataset.of(dataset, [range(10), range(10, 23)]), ob.SGD(), CPU)
    )
    assert choose("vectorized", w, 4, 10_000)[0] == "vectorized", "dropout does not mix"


class Counting(nn.Module):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        out: Tensor = self.layer(x)
        return out


def spectral_norm() -> nn.Module:
    """Return a module whose power iteration has not converged, which depends on its weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(12, 3)))


@pytest.mark.parametrize(
    "module",
    [Counting(), nn.Sequential(nn.BatchNorm1d(12), Projected()), spectral_norm()],
    ids=["counter", "batch norm", "spectral norm"],
)
def test_buffers_that_training_changes_are_not_stacked(module: nn.Module) -> None:
    with pytest.raises(ob.ConfigError, match=r"executor: 'vectorized' cannot run this model: (it mixes|training chan)"):
        ob.run(**settings(model=module, executor="vectorized"))
    assert ob.run(**settings(model=module, executor="sequential")).summary["rounds"] > 0


@pytest.mark.parametrize("model", [nn.BatchNorm1d(12), Scaled()], ids=["batch norm", "own parameter"])
def test_models_that_can_be_stacked(model: nn.Module) -> None:
    module = nn.Sequential(model, nn.Linear(3 if isinstance(model, Scaled) else 12, 3))
    one, stacked = (ob.run(**settings(model=module, executor=name)) for name in ("sequential", "vectorized"))
    torch.testing.assert_close(stacked.x, one.x, rtol=1e-4, atol=1e-5)


def test_a_trial_ends_when_it_is_clear_that_the_run_is_short() -> None:
    calls: list[Sequence[Task]] = []

    class Counted(Sequential):
        def train_all(self, tasks: Sequence[Task]) -> list[TrainingOutcome]:
            calls.append(tasks)
            return super().train_all(tasks)

    w = work(built(LR()), RULES[0])
    assert choice.client_steps_per_second(Counted(w), choice.trial(w, 6, 1), seconds=math.inf, enough=0.0) > 0
    assert len(calls) == 2, "one call that sets everything up, and one that is measured"


def test_constant_buffers_and_scalars_are_fine() -> None:
    assert ob.run(**settings(model=Scaled, executor="vectorized")).summary["executor"] == "vectorized"
