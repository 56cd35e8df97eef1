"""Client work on which executors are compared with each other."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.client.context import TrainingContext
from offbeat.client.rules import SGD, Adagrad, Adam, AdamW, ClientRule, Dyn, Prox, Scaffold
from offbeat.client.runtime import ClientRuntime
from offbeat.data import PartitionedDataset, from_arrays
from offbeat.executors import EXECUTORS
from offbeat.messages import Job
from offbeat.models import Model
from offbeat.random import key
from offbeat.server.extensions import BUFFERS

CPU = torch.device("cpu")


SHAPE = (1, 8, 8)


def federated(sizes: tuple[int, ...] = (1, 3, 10, 17, 40, 64), classes: int = 4) -> PartitionedDataset:
    """Return clients of very unequal size: short last batches, unequal numbers of steps, one with a single example."""
    rng = np.random.default_rng(0)
    n = sum(sizes)
    x, y = rng.standard_normal((n, *SHAPE), dtype=np.float32), rng.integers(classes, size=n)
    return PartitionedDataset.of(
        from_arrays(x, y, x[:8], y[:8], classes=classes), np.split(rng.permutation(n), np.cumsum(sizes)[:-1])
    )


def work(module: nn.Module, rule: ClientRule, data: PartitionedDataset | None = None) -> ClientRuntime:
    return ClientRuntime(TrainingContext(module, data or federated(), rule, CPU))


def built(model: Model) -> nn.Module:
    torch.manual_seed(0)
    return model.build(SHAPE, 4)


def jobs(w: ClientRuntime, models: int = 2) -> list[Job]:
    """Return one job per client, from different versions."""
    x = w.context.layout.read(w.context.module)
    noise = [torch.randn(x.shape, generator=torch.Generator().manual_seed(v)) for v in range(models)]
    versions = [x + 0.01 * values.to(x) for values in noise]
    extra = {"c": 0.01 * torch.ones_like(x)} if isinstance(w.context.rule, Scaffold) else {}
    if w.context.buffers.names:
        extra[BUFFERS] = w.context.buffers.read(w.context.module)
    return [
        Job(i, i, i % models, versions[i % models], w.context.steps(i), key(9, i), rate=1 / (1 + i % 3), extra=extra)
        for i in range(w.context.data.clients)
    ]


def deltas(name: str, w: ClientRuntime, js: list[Job]) -> Tensor:
    updates = EXECUTORS[name](w).train(js)
    assert [u.job for u in updates] == [j.id for j in js], "in the order of the jobs"
    assert [u.examples for u in updates] == [w.context.data.size(j.client) for j in js]
    return torch.stack([u.delta for u in updates])


RULES = [
    SGD(lr=0.1, epochs=2, batch_size=8),
    SGD(lr=0.05, steps=7, batch_size=16, momentum=0.9, weight_decay=1e-2),
    Prox(lr=0.1, epochs=3, batch_size=5, mu=0.5),
    Scaffold(lr=0.1, epochs=2, batch_size=8, weight_decay=1e-2),
    Dyn(lr=0.1, epochs=2, batch_size=8, alpha=0.2),
    SGD(lr=0.1, epochs=2, batch_size=4, accumulate=3, clip_norm=0.5),
    Adam(lr=0.01, epochs=2, batch_size=8, clip_norm=0.5),
    AdamW(lr=0.01, epochs=2, batch_size=3, accumulate=2, drop_last=True),
    Adagrad(lr=0.01, epochs=2, batch_size=8),
    Prox(lr=0.1, epochs=2, batch_size=8, mu=0.5, optimizer=SGD(momentum=0.9, nesterov=True)),
    Scaffold(lr=0.01, epochs=2, batch_size=8, weight_decay=1e-2, optimizer=Adam()),
]


NORMED = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4), nn.BatchNorm1d(4, momentum=None)
)
