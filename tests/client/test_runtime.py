"""The bytes of a job and of its update, including the vectors that travel in addition to x and Δ."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.support.executors import NORMED, work
from torch import nn

from offbeat.client.rules import SGD, ClientRule, Scaffold
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
