"""One client after the other with ordinary autograd: the plain judge of every other executor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from offbeat.engine.executors.base import Executor, Outcome, Task, outcome, replayable
from offbeat.engine.work import Work
from offbeat.messages import Job


class Sequential(Executor):
    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.bulk = 1  # nothing is gained by training ahead

    def train_all(self, tasks: Sequence[Task]) -> list[Outcome]:
        self.work.module.train()
        return [self._train(work, job) for work, job in tasks]

    def _train(self, work: Work, job: Job) -> Outcome:
        rule, lr = work.rule, work.rule.lr * job.rate
        y, state = job.x, rule.begin(job.x, job.extra, work.kept_by(job))
        batches, counts = work.plan(job)
        with replayable(job.seed, work.device):
            for batch, count in zip(batches, counts, strict=True):
                g = self._gradient(y, torch.from_numpy(batch[:count]).to(work.device))
                y, state = rule.step(y, g, job.x, lr, state)
        sent, kept = rule.finish(y, job.x, lr, float(job.steps), state)
        delta = y - job.x
        return outcome((work, job), bool(torch.isfinite(delta.sum())), delta, sent, kept)

    def _gradient(self, y: Tensor, batch: Tensor) -> Tensor:
        module, layout = self.work.module, self.work.layout
        module.zero_grad(set_to_none=True)
        layout.write(module, y)
        cross_entropy(module(self.work.inputs(batch)), self.work.labels(batch)).backward()  # type: ignore[no-untyped-call]
        zeros = {name: p.new_zeros(p.shape) for name, p in module.named_parameters() if p.grad is None}
        return layout.flatten(zeros | {name: p.grad for name, p in module.named_parameters() if p.grad is not None})
