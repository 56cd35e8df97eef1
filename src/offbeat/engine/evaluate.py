"""Accuracy and loss of x on the test data."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from offbeat.engine.work import Work
from offbeat.errors import DivergenceError

Score = Callable[[], tuple[float, float]]


class Evaluator:
    """On a GPU in a stream of its own and with a module of its own, beside the training that goes on."""

    def __init__(self, work: Work, batch_size: int) -> None:
        self.work, self.batch_size = work, batch_size
        self.module = copy.deepcopy(work.module).eval()
        self.x, self.y = work.data.dataset.test_on(work.device)
        gpu = work.device.type == "cuda"
        self._stream = torch.cuda.Stream(work.device) if gpu else None  # type: ignore[no-untyped-call]

    def __call__(self, x: Tensor, buffers: Tensor | None = None) -> Score:
        """Begin a test; the function that is returned waits for it and gives (accuracy, mean loss)."""
        if self._stream is None:
            figures = self._figures(x, buffers)
        else:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                figures = self._figures(x, buffers)
            for tensor in (x, buffers) if buffers is not None else (x,):
                tensor.record_stream(self._stream)
        return lambda: self._read(figures)

    @torch.no_grad()
    def _figures(self, x: Tensor, buffers: Tensor | None) -> Tensor:
        """How many are right, and the sum of the losses."""
        self.work.layout.write(self.module, x)
        if buffers is not None:
            self.work.buffers.write(self.module, buffers)
        figures = torch.zeros(2, dtype=torch.float64, device=self.work.device)
        for xs, ys in zip(torch.split(self.x, self.batch_size), torch.split(self.y, self.batch_size), strict=True):
            outputs = self.module(self.work.laid(self.work.data.dataset.prepare(xs)))
            figures[0] += (outputs.argmax(dim=1) == ys).sum()
            figures[1] += cross_entropy(outputs, ys, reduction="sum").double()
        return figures

    def _read(self, figures: Tensor) -> tuple[float, float]:
        if self._stream is not None:
            self._stream.synchronize()
        right, loss = figures.tolist()
        mean = loss / len(self.y)
        if not math.isfinite(mean):
            raise DivergenceError(
                f"the test loss is {mean}.  A smaller client.lr (now {self.work.rule.lr:g}) "
                "or algorithm.eta usually helps."
            )
        return right / len(self.y), mean
