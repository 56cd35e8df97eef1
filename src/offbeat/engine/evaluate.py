"""Accuracy and loss of x on the test data."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from offbeat.engine.work import Work
from offbeat.errors import DivergenceError


class Evaluator:
    def __init__(self, work: Work, batch_size: int) -> None:
        self.work, self.batch_size = work, batch_size
        self.x = work.data.dataset.test_x.to(work.device)
        self.y = work.data.dataset.test_y.to(work.device)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> tuple[float, float]:
        """(accuracy, mean loss)."""
        module = self.work.module
        module.eval()
        self.work.layout.write(module, x)
        right = torch.zeros((), dtype=torch.int64, device=self.work.device)
        loss = torch.zeros((), dtype=torch.float64, device=self.work.device)
        for xs, ys in zip(torch.split(self.x, self.batch_size), torch.split(self.y, self.batch_size), strict=True):
            outputs = module(self.work.data.dataset.prepare(xs))
            right += (outputs.argmax(dim=1) == ys).sum()
            loss += cross_entropy(outputs, ys, reduction="sum").double()
        mean = loss.item() / len(self.y)
        if not torch.isfinite(loss):
            raise DivergenceError(
                f"the test loss is {mean}.  A smaller client.lr (now {self.work.rule.lr:g}) "
                "or algorithm.eta usually helps."
            )
        return right.item() / len(self.y), mean
