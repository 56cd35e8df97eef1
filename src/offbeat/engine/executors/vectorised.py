"""All clients at once: parameters stacked (n, d), one forward pass for the whole stack by `torch.func`.

Clients that do fewer steps than others and batches that are shorter than others are masked: the stack is sorted by
number of steps, so those still at work are its first rows, and padding examples have weight zero in the loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from offbeat.clients import State
from offbeat.engine.executors.base import Executor, replayable
from offbeat.engine.work import Work
from offbeat.messages import Job, Update
from offbeat.seeds import key


class Vectorised(Executor):
    def __init__(self, work: Work) -> None:
        super().__init__(work)

        def forward(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            outputs: Tensor = functional_call(work.module, parameters, (x,))
            return outputs

        self._forward = vmap(forward, randomness="different")

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        if not jobs:
            return []
        self.work.module.train()
        order = sorted(range(len(jobs)), key=lambda i: -jobs[i].steps)
        updates = dict(zip(order, self._train([jobs[i] for i in order]), strict=True))
        return [updates[i] for i in range(len(jobs))]

    def _train(self, jobs: Sequence[Job]) -> list[Update]:
        """Train jobs that are sorted by falling number of steps."""
        rule = self.work.rule
        x = torch.stack([job.x for job in jobs])
        lr = x.new_tensor([[rule.lr * job.rate] for job in jobs])
        steps = np.array([job.steps for job in jobs])
        y, state = x.clone(), rule.begin(x, _stack(job.extra for job in jobs), _stack(map(self.work.kept_by, jobs)))
        batches, weights = self._plan(jobs)
        with replayable(key(*(job.seed for job in jobs)), self.work.device):
            for t in range(int(steps[0])):
                n = int(np.searchsorted(-steps, -t))  # rows that do more than t steps
                g = self.gradient(y[:n], batches[t, :n], weights[t, :n])
                rows: State = {name: value[:n] for name, value in state.items()}
                y[:n], after = rule.step(y[:n], g, x[:n], lr[:n], rows)
                for name, value in after.items():
                    if value is not rows[name]:
                        state[name][:n] = value
        sent, kept = rule.finish(y, x, lr, x.new_tensor(steps)[:, None], state)
        # Each row its own memory: one slow update in flight must not keep the whole stack alive.
        return [
            self.work.update(
                job, delta.clone(), *({k: v[row].clone() for k, v in part.items()} for part in (sent, kept))
            )
            for row, (job, delta) in enumerate(zip(jobs, y - x, strict=True))
        ]

    def gradient(self, y: Tensor, batch: Tensor, weight: Tensor) -> Tensor:
        """(n, d): each row's gradient of its weighted loss over its row of `batch`.

        No row's loss depends on another row, so the gradient of the sum is the stack of the gradients.
        """
        y = y.detach().requires_grad_()
        outputs = self._forward(self.work.layout.unflatten(y), self.work.inputs(batch))
        losses = cross_entropy(outputs.flatten(0, 1), self.work.y[batch].flatten(), reduction="none")
        (g,) = torch.autograd.grad(losses.dot(weight.flatten()), y)
        return g

    def _plan(self, jobs: Sequence[Job]) -> tuple[Tensor, Tensor]:
        """Indices (steps, n, B) and weights 1/count, zero for padding."""
        plans = [self.work.plan(job) for job in jobs]
        width = max(batches.shape[1] for batches, _ in plans)
        batches = np.zeros((jobs[0].steps, len(jobs), width), dtype=np.int64)
        weights = np.zeros(batches.shape)
        for row, (indices, counts) in enumerate(plans):
            batches[: len(indices), row, : indices.shape[1]] = indices
            weights[: len(indices), row] = (np.arange(width) < counts[:, None]) / counts[:, None]
        device, dtype = self.work.device, jobs[0].x.dtype
        return torch.from_numpy(batches).to(device), torch.from_numpy(weights).to(device, dtype)


def _stack(rows: Iterable[Mapping[str, Tensor]]) -> State:
    """Rows of named vectors → named (n, d)."""
    listed = list(rows)
    return {name: torch.stack([row[name] for row in listed]) for name in listed[0]}
