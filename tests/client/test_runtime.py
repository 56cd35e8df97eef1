"""The bytes of a job and of its update, including the vectors that travel in addition to x and Δ."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.support.executors import NORMED, federated, work
from torch import nn

from offbeat.client.rules import SGD, ClientRule, Scaffold
from offbeat.errors import ConfigError
from offbeat.messages import Job
from offbeat.payload import unpack
from offbeat.server.extensions import BUFFERS

PLAIN = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))


@pytest.mark.parametrize(
    ("module", "rule", "auxiliary"),
    [
        (PLAIN, SGD(lr=0.1, batch_size=8), {}),
        (PLAIN, Scaffold(lr=0.1, batch_size=8), {"c": "change"}),
        (NORMED, SGD(lr=0.1, batch_size=8), {BUFFERS: BUFFERS}),
        (NORMED, Scaffold(lr=0.1, batch_size=8), {"c": "change", BUFFERS: BUFFERS}),
    ],
    ids=["plain", "scaffold", "batch norm", "scaffold with batch norm"],
)
def test_stated_sizes_are_those_of_the_messages(module: nn.Module, rule: ClientRule, auxiliary: dict[str, str]) -> None:
    runtime = work(copy.deepcopy(module), rule)
    context, extension = runtime.context, runtime.server_extension()
    x = context.layout.read(context.module)
    if extension is not None:
        extension.start(x, context.data.clients)
    extra = dict(extension.extra()) if extension is not None else {}
    assert extra.keys() == auxiliary.keys()
    job = Job(1, 4, 0, x, context.steps(4), 7, extra=extra)
    assert runtime.download_bytes(job) == x.nbytes + sum(value.nbytes for value in extra.values())
    update, payload = runtime.train_to_bytes(job)
    _, parts = unpack(payload)
    assert parts.keys() == {"delta", *auxiliary.values()}
    assert runtime.upload_bytes(job) == update.wire_bytes == sum(map(len, parts.values()))
    assert torch.isfinite(update.delta).all()


@pytest.mark.parametrize(
    ("rule", "fails"),
    [
        (SGD(batch_size=4), True),  # 9 = 4 + 4 + 1
        (SGD(batch_size=4, drop_last=True), False),
        (SGD(batch_size=3), False),
        (SGD(batch_size=4, accumulate=2), True),  # 9 = 8 + 1
        (SGD(batch_size=1), True),
    ],
)
def test_a_batch_of_one_is_refused_before_the_run_where_batch_norm_cannot_train_on_it(rule: SGD, fails: bool) -> None:
    vectors = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
    images = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 4))
    data = federated(sizes=(12, 9, 6))
    work(images, rule, data).context.check_batches()
    context = work(vectors, rule, data).context
    if fails:
        first = 0 if rule.batch_size == 1 else 1
        with pytest.raises(ConfigError, match=f"client {first} has a batch of one example.*drop_last = true"):
            context.check_batches()
    else:
        context.check_batches()
