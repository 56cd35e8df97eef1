"""One client after the other with ordinary autograd: the plain judge of every other executor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from offbeat.clients import BUFFERS, State
from offbeat.engine.executors.base import Executor, Outcome, Piece, Plan, Task, Trained, outcome, replayable
from offbeat.engine.executors.walk import Walk
from offbeat.engine.work import Work


class Sequential(Executor):
    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.bulk, self.sample = 1, 4  # nothing is gained by training ahead

    def train_all(self, tasks: Sequence[Task]) -> list[Outcome]:
        self.work.module.train()
        return [outcome(task, *local_work(self.work, Piece.of(task), task[0].plan(task[1]))) for task in tasks]


def local_work(shared: Work, piece: Piece, plan: Plan) -> Trained:
    """One job from begin to finish; the plan is its own (steps, B).

    Of `shared` only the model and the data are used: whatever belongs to a run comes in as an argument and goes out as
    a result, so that another process can do this as well.
    """
    rule, job = piece.rule, piece.job
    lr = rule.lr * job.rate
    walk = Walk(rule, shared.layout, job.x, rule.begin(job.x, job.extra, piece.kept))
    if shared.buffers.names:
        shared.buffers.write(shared.module, job.extra[BUFFERS])
    with replayable(job.seed, shared.device):
        for batch, count in zip(*plan, strict=True):
            leaves = walk.leaves()
            index = torch.from_numpy(batch[:count]).to(shared.device)
            walk.step(_loss(shared, walk.parameters(leaves), index), leaves, lr)
    delta, sent, kept = walk.delta(), State(), State()
    if rule.sends or rule.keeps:
        y, state = walk.end()
        sent, kept = rule.finish(y, job.x, lr, float(job.steps), state)
    if shared.buffers.names:
        sent = sent | {BUFFERS: shared.buffers.read(shared.module)}
    return bool(torch.isfinite(delta.sum())), delta, sent, kept


def one_by_one(shared: Work, pieces: Sequence[Piece], plan: Plan) -> Iterator[Trained]:
    """Several jobs; the plan is all theirs (most steps, n, B)."""
    batches, counts = plan
    for i, piece in enumerate(pieces):
        yield local_work(shared, piece, (batches[: piece.job.steps, i], counts[: piece.job.steps, i]))


def _loss(work: Work, parameters: dict[str, Tensor], batch: Tensor) -> Tensor:
    """The mean loss on a batch, by a forward pass whose parameters are views: nothing is copied."""
    with work.mixed():
        outputs = functional_call(work.module, parameters, (work.laid(work.inputs(batch)),))
    kind = next(iter(parameters.values())).dtype
    return cross_entropy(outputs.to(kind), work.labels(batch))
