"""One client after the other with ordinary autograd: the plain judge of every other executor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from offbeat.clients import BUFFERS, ClientRule, State
from offbeat.engine.executors.base import Executor, Outcome, Task, outcome, replayable
from offbeat.engine.work import Work
from offbeat.messages import Job

Plan = tuple[NDArray[np.int64], NDArray[np.int64]]


class Sequential(Executor):
    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.bulk = 1  # nothing is gained by training ahead

    def train_all(self, tasks: Sequence[Task]) -> list[Outcome]:
        self.work.module.train()
        return [self._train(work, job) for work, job in tasks]

    def _train(self, work: Work, job: Job) -> Outcome:
        delta, sent, kept = local_work(self.work, work.rule, job, work.plan(job), work.kept_by(job))
        return outcome((work, job), finite(delta), delta, sent, kept)


def local_work(shared: Work, rule: ClientRule, job: Job, plan: Plan, kept: State) -> tuple[Tensor, State, State]:
    """One job from begin to finish: Δ, what is sent beside it, and what the client keeps.

    Of `shared` only the model and the data are used: whatever
    belongs to a run comes in as an argument and goes out as a result, so that another process can do this as well.
    """
    lr = rule.lr * job.rate
    y, state = job.x, rule.begin(job.x, job.extra, kept)
    if shared.buffers.names:
        shared.buffers.write(shared.module, job.extra[BUFFERS])
    with replayable(job.seed, shared.device):
        for batch, count in zip(*plan, strict=True):
            g = _gradient(shared, y, torch.from_numpy(batch[:count]).to(shared.device))
            y, state = rule.step(y, g, job.x, lr, state)
    sent, keep = rule.finish(y, job.x, lr, float(job.steps), state)
    if shared.buffers.names:
        sent = sent | {BUFFERS: shared.buffers.read(shared.module)}
    return y - job.x, sent, keep


def finite(delta: Tensor) -> bool:
    return bool(torch.isfinite(delta.sum()))


def _gradient(work: Work, y: Tensor, batch: Tensor) -> Tensor:
    """Of the mean loss on a batch, by a forward pass whose parameters are views of y: nothing is copied."""
    y = y.detach().requires_grad_()
    with work.mixed():
        outputs = functional_call(work.module, work.layout.unflatten(y), (work.inputs(batch),))
    (g,) = torch.autograd.grad(cross_entropy(outputs.to(y.dtype), work.labels(batch)), y)
    return g
