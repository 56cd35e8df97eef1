"""Execution of a compiled program on the CPU."""

from __future__ import annotations

import numpy as np
import torch
from tests.support.executors import jobs

from offbeat.client.runtime import ClientRuntime
from offbeat.executors.gpu.program import Program
from offbeat.executors.stacked import Stack
from offbeat.executors.vectorized import plan, rows
from offbeat.server.extensions import BUFFERS


def run(program: Program | None, w: ClientRuntime) -> tuple[Program, torch.Tensor]:
    tasks = [(w, job) for job in sorted(jobs(w), key=lambda job: -job.steps)]
    x = torch.stack([job.x for _, job in tasks])
    lr = x.new_tensor([[w.context.rule.lr * job.rate] for _, job in tasks])
    extra = rows(job.extra for _, job in tasks)
    buffers = extra.pop(BUFFERS, None)
    state = w.context.rule.begin(x, extra, rows(w.begin(job) for _, job in tasks))
    batches, counts = plan(tasks)
    if program is None:
        program = Program(
            Stack(w.context).losses, w.context.layout, w.context.rule, x, batches, state, buffers, None, compiled=False
        )
    assert program.fits(w.context.rule, x, batches, state)
    y, *_ = program.run(x, lr, np.array([job.steps for _, job in tasks]), state, buffers, batches, counts)
    moved = {job.id: delta for (_, job), delta in zip(tasks, y - x, strict=True)}
    return program, torch.stack([moved[job.id] for job in jobs(w)])
