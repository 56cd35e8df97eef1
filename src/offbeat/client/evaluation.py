"""Accuracy and loss of a model on the test data."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from offbeat.client.context import TrainingContext
from offbeat.errors import DivergenceError

Score = Callable[[], tuple[float, float]]


class Evaluator:
    """Evaluates x on the test data.

    On a GPU it runs in a stream and with a module of its own, concurrently with training.

    Args:
        context: Model and data.
        batch_size: Test examples per forward pass.
    """

    def __init__(self, context: TrainingContext, batch_size: int) -> None:
        self.context, self.batch_size = context, batch_size
        self.module = copy.deepcopy(context.module).eval()
        self.x, self.y = context.data.dataset.test_on(context.device)
        gpu = context.device.type == "cuda"
        self._stream = torch.cuda.Stream(context.device) if gpu else None  # type: ignore[no-untyped-call]

    def __call__(self, x: Tensor, buffers: Tensor | None = None) -> Score:
        """Start an evaluation.

        Args:
            x: The model's parameters.
            buffers: Its running statistics, if it has any.

        Returns:
            A function that waits for the evaluation and returns (accuracy, mean loss).
        """
        if self._stream is None:
            sums = self._sums(x, buffers)
        else:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                sums = self._sums(x, buffers)
            for tensor in (x, buffers) if buffers is not None else (x,):
                tensor.record_stream(self._stream)
        return lambda: self._read(sums)

    @torch.no_grad()
    def _sums(self, x: Tensor, buffers: Tensor | None) -> Tensor:
        """Return the number of correct predictions and the sum of the losses."""
        context = self.context
        context.layout.write(self.module, x)
        if buffers is not None:
            context.buffers.write(self.module, buffers)
        sums = torch.zeros(2, dtype=torch.float64, device=context.device)
        for xs, ys in zip(torch.split(self.x, self.batch_size), torch.split(self.y, self.batch_size), strict=True):
            outputs = self.module(context.to_memory_format(context.data.dataset.prepare(xs)))
            sums[0] += (outputs.argmax(dim=1) == ys).sum()
            sums[1] += cross_entropy(outputs, ys, reduction="sum").double()
        return sums

    def _read(self, sums: Tensor) -> tuple[float, float]:
        if self._stream is not None:
            self._stream.synchronize()
        correct, loss = sums.tolist()
        mean = loss / len(self.y)
        if not math.isfinite(mean):
            raise DivergenceError(
                f"the test loss is {mean}. A smaller client.lr (now {self.context.rule.lr:g}) "
                "or algorithm.eta usually helps."
            )
        return correct / len(self.y), mean
