"""Client work on which the pooled executors are compared with `sequential`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tests.support.local_loops import Distill, Remembering
from torch import Tensor, nn

from offbeat.client.context import TrainingContext
from offbeat.client.rules import SGD, ClientRule, Dyn, Prox, Scaffold, State, TorchOptimizer
from offbeat.client.runtime import ClientRuntime
from offbeat.data import PartitionedDataset, from_arrays
from offbeat.errors import ConfigError
from offbeat.messages import Job, Update
from offbeat.random import key

CPU = torch.device("cpu")


RULES = [
    SGD(lr=0.1, epochs=2, batch_size=8),
    SGD(lr=0.05, steps=3, batch_size=16, momentum=0.9, weight_decay=1e-2),
    Prox(lr=0.1, epochs=1, batch_size=5, mu=0.5),
    Scaffold(lr=0.1, epochs=2, batch_size=8, weight_decay=1e-2),
    Dyn(lr=0.1, epochs=2, batch_size=8, alpha=0.2),
    Remembering(lr=0.05, epochs=2, batch_size=8),
]
LOOPS = [
    Distill(lr=0.01, epochs=2, batch_size=8),
    TorchOptimizer(torch.optim.RMSprop, lr=0.01, steps=3, batch_size=8, clip_norm=0.5),
]


def federated(seed: int = 0) -> PartitionedDataset:
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((60, 1, 8, 8), dtype=np.float32), rng.integers(4, size=60)
    return PartitionedDataset.of(
        from_arrays(x, y, x[:4], y[:4], classes=4), np.split(rng.permutation(60), [1, 4, 20, 30])
    )


class Small(nn.Module):
    """A model with a convolution, dropout, a buffer and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.drop, self.head = nn.Conv2d(1, 3, 3), nn.Dropout(0.3), nn.Linear(108, 4)
        self.frozen = nn.Linear(4, 4, bias=False).requires_grad_(False)
        nn.init.eye_(self.frozen.weight)
        self.scale = nn.Buffer(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.frozen(self.head(self.drop(self.convolution(x).relu().flatten(1))))
        return out * self.scale


def work(
    rule: ClientRule, module: nn.Module | None = None, data: PartitionedDataset | None = None, **more: Any
) -> ClientRuntime:
    torch.manual_seed(0)
    return ClientRuntime(TrainingContext(module or Small(), data or federated(), rule, CPU), **more)


def jobs(w: ClientRuntime, seed: int = 9) -> list[Job]:
    """Return one job per client, from two versions."""
    x = 0.1 * torch.randn(w.context.layout.dim, generator=torch.Generator().manual_seed(0))
    versions, extra = [x, x + 0.01], {"c": 0.01 * torch.ones_like(x)} if isinstance(w.context.rule, Scaffold) else {}
    return [
        Job(i, i, i % 2, versions[i % 2], w.context.steps(i), key(seed, i), rate=1 / (1 + i % 3), extra=extra)
        for i in range(w.context.data.clients)
    ]


def same(one: Update, other: Update) -> bool:
    assert (one.job, one.client, one.wire_bytes, one.examples) == (
        other.job,
        other.client,
        other.wire_bytes,
        other.examples,
    )
    assert one.extra.keys() == other.extra.keys()
    return torch.equal(one.delta, other.delta) and all(torch.equal(one.extra[n], other.extra[n]) for n in one.extra)


@dataclass(kw_only=True, frozen=True)
class Failing(SGD):
    error: str = "value"

    def begin(self, x: Tensor, extra: Any, kept: State) -> State:
        raise {
            "value": ValueError("no good"),
            "odd": OddError("this", "that"),
            "config": ConfigError("bad", key="a.b"),
        }[self.error]


class OddError(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")
