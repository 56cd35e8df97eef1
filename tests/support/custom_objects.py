"""Models, data, partitions, algorithms and attacks of a user, named in TOMLs by the tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

import offbeat as ob
from offbeat.environment import Forgery, Known


def make_model(classes: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, width), nn.Tanh(), nn.Linear(width, classes))


def narrow() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))


def normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))


class Centered(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


def mixing() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), Centered())


def wrong_input() -> nn.Module:
    return nn.Linear(3, 10)


class Points(torch.utils.data.Dataset[tuple[Tensor, int]]):
    def __init__(self, n: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.y = rng.integers(3, size=n)
        self.x = (rng.standard_normal((n, 12)) + 2 * np.eye(12)[self.y]).astype(np.float32)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.x[i]), int(self.y[i])


def make_data() -> tuple[Points, Points]:
    return Points(90, 0), Points(60, 1)


def every_third(labels: Any, clients: int) -> list[Any]:
    return [np.arange(i, len(labels), clients) for i in range(clients)]


def leaves_one_out(labels: Any, clients: int) -> list[Any]:
    return [*np.array_split(np.arange(len(labels)), clients - 1), np.array([], dtype=int)]


@dataclass(kw_only=True)
class SignBuff(ob.Algorithm):
    """A user's own rule: a step of fixed length along the sign of the summed updates."""

    scale: float = 0.1

    schedulers: ClassVar[tuple[str, ...]] = ("buffered",)
    state_names: ClassVar[tuple[str, ...]] = ("total",)

    def reset(self) -> None:
        self.total = torch.zeros_like(self.x)

    def accumulate(self, job: ob.Job, update: ob.Update) -> None:
        self.total = self.total + update.delta

    def pseudo_gradient(self) -> Tensor:
        v = self.scale * self.total.sign()
        self.reset()
        return v


@dataclass(kw_only=True, frozen=True)
class FreeRider(Forgery):
    """A user's own attack: nearly nothing, in the direction of the last honest update."""

    factor: float = 0.01

    def observed_count(self) -> int:
        return 1

    def forge(self, delta: Tensor, known: Known) -> Tensor:
        return self.factor * known.honest[-1] if known.honest else torch.zeros_like(delta)
