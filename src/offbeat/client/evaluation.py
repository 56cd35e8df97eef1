"""Metrics on the test data: of the whole set, per client and per label, with one model or with one per client."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.client.context import TrainingContext
from offbeat.client.own_models import StackedForward
from offbeat.errors import ConfigError, DivergenceError, first_line
from offbeat.random import stream
from offbeat.tasks.base import in_dtype
from offbeat.tasks.metrics import per_example
from offbeat.trees import Tree, call, map_tensors, size
from offbeat.vectors import copied

LOSS = "loss"


@dataclass(frozen=True)
class TestResult:
    """The metrics of one evaluation."""

    __test__ = False  # not a test class

    metrics: dict[str, float]
    """Metrics and loss of the whole test set, by name."""
    per_client: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """The same per client, for metrics that are means over examples; NaN for clients without test examples."""
    per_label: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """The same per class label."""


Score = Callable[[], TestResult]
ClientModels = Callable[[Sequence[int]], tuple[Tensor, Tensor | None]]
"""Returns the models (n, d) of clients, in the dimension of local training, and their running statistics (n, b)."""


class EvaluationInterrupted(Exception):  # noqa: N818 — not an error
    """Raised between two batches when the run is asked to stop."""


class Evaluator:
    """Evaluates x on the test data, or on the training data if there is no test data.

    On a GPU it runs in a stream and with a module of its own, concurrently with training. Where every client is tested
    with its own model, the figures are means over all test examples that belong to a client.

    Attributes:
        stopping: Asks whether the evaluation should stop between two batches.
        progress: Receives the number of tested examples and of all between two batches.

    Args:
        context: Model, data and task.
        batch_size: Test examples per forward pass.
        examples: Number of test examples to use, a fixed random sample; all when left out.
        owners: The client to which each test example belongs, for metrics per client; -1 for none.
        per_label: Whether metrics are also computed per class label.
    """

    def __init__(
        self,
        context: TrainingContext,
        batch_size: int,
        *,
        examples: int | None = None,
        owners: NDArray[np.int64] | None = None,
        per_label: bool = False,
    ) -> None:
        self.context, self.batch_size, self.owners, self.per_label = context, batch_size, owners, per_label
        self.stopping: Callable[[], bool] = lambda: False
        self.progress: Callable[[int, int], None] = lambda done, count: None
        self.module = copied(context.module).eval()
        dataset, device = context.data.dataset, context.device
        self.x, self.y = dataset.on(device) if dataset.test_x is None else dataset.test_on(device)
        self._sample(examples)
        self.count = size(self.y)
        metrics = context.task.resolved_metrics()
        self.means = {name: metric for name, metric in metrics.items() if not metric.streams}
        self.streams = {name: copy.deepcopy(metric) for name, metric in metrics.items() if metric.streams}
        for metric in self.streams.values():
            if hasattr(metric.function, "to"):
                metric.function.to(device)
        self.names = list(metrics)
        gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if gpu else None  # type: ignore[no-untyped-call]

    def _sample(self, examples: int | None) -> None:
        """Restrict the evaluation to a random sample of the examples."""
        count = size(self.y)
        if examples is None or examples >= count:
            return
        chosen = np.sort(stream(0, "evaluation").permutation(count)[:examples])
        index = torch.from_numpy(chosen).to(self.context.device)
        self.x, self.y = (map_tensors(lambda t: t.index_select(0, index), tree) for tree in (self.x, self.y))
        if self.owners is not None:
            self.owners = self.owners[chosen]

    def __call__(self, x: Tensor, buffers: Tensor | None = None, models: ClientModels | None = None) -> Score:
        """Start an evaluation.

        Args:
            x: The model's parameters.
            buffers: Its running statistics, if it has any.
            models: The models of the clients, where each is tested with its own.

        Returns:
            A function that waits for the evaluation and returns its metrics.

        Raises:
            EvaluationInterrupted: The evaluation was asked to stop.
        """
        for metric in self.streams.values():
            metric.function.reset()
        if models is not None:
            values, count = self._own_values(models)
            return lambda: self._read(values, count)
        if self._stream is None:
            values = self._values(x, buffers)
        else:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                values = self._values(x, buffers)
            for tensor in (x, buffers) if buffers is not None else (x,):
                tensor.record_stream(self._stream)
        return lambda: self._read(values, self.count)

    @torch.no_grad()
    def _values(self, x: Tensor, buffers: Tensor | None) -> Tensor:
        """Return the sums over the examples, or (examples, …) for metrics per client: the loss, then the means."""
        context = self.context
        context.split.shared.write(self.module, x)
        if buffers is not None:
            context.split.shared_buffers.write(self.module, buffers)
        sums = torch.zeros(1 + len(self.means), dtype=torch.float64, device=context.device)
        rows = []
        for first in range(0, self.count, self.batch_size):
            if self.stopping():
                raise EvaluationInterrupted
            here = slice(first, min(first + self.batch_size, self.count))
            inputs, labels = self._examples(here)
            values = self._figures(call(self.module, context.to_memory_format(inputs)), labels)
            sums += torch.stack([value.sum().double() for value in values])
            if self.owners is not None or self.per_label:
                rows.append(torch.stack([value.double() for value in values], dim=1))
            self.progress(here.stop, self.count)
        return torch.cat([sums[None], *rows])

    def _own_values(self, models: ClientModels) -> tuple[Tensor, int]:
        """Return what `_values` does, with each client's model on its own examples, and the number of these."""
        assert self.owners is not None
        values = torch.zeros(self.count, 1 + len(self.means), dtype=torch.float64, device=self.context.device)
        count, done = int((self.owners >= 0).sum()), 0
        if not count:
            raise ConfigError("no client has a test example; use more examples", key="evaluation.examples")
        forward = StackedForward(self.context, self.module)
        for clients, own in forward.stacks(self.owners, self.batch_size):
            if self.stopping():
                raise EvaluationInterrupted
            y, buffers = models(clients)
            for row, positions in forward.batches(own, self.batch_size):
                if self.stopping():
                    raise EvaluationInterrupted
                statistics = None if buffers is None else buffers[row]
                with torch.no_grad():
                    outputs, index = forward(y[row], statistics, positions, self._examples)
                    figures = self._figures(outputs, self._examples(index)[1])
                    values[index] = torch.stack([each.double() for each in figures], dim=1)
                done += len(index)
                self.progress(done, count)
        return torch.cat([values.sum(dim=0)[None], values]), count

    def _examples(self, here: slice | Tensor) -> tuple[Tree, Tree]:
        """Return the inputs and labels of a batch."""
        dataset = self.context.data.dataset
        if dataset.reader is not None:
            return self.context.read(self.x[here], 0, test=dataset.test_x is not None)
        raw, labels = (map_tensors(operator.itemgetter(here), tree) for tree in (self.x, self.y))
        return dataset.prepare(raw), dataset.prepare_labels(labels)

    def _figures(self, outputs: Any, labels: Tree) -> list[Tensor]:
        """Return the losses of a batch and its values of each mean; other metrics update themselves."""
        context = self.context
        outputs, count = in_dtype(outputs, torch.float32), size(labels)
        for name, metric in self.streams.items():
            try:
                metric.function.update(outputs, labels)
            except Exception as error:  # a user's metric may raise anything
                reason = f"it failed: {type(error).__name__}: {first_line(error)}"
                raise ConfigError(reason, key=f"task.metrics.{name}") from error
        losses = context.task.losses(outputs, labels, count)
        return [losses, *(per_example(name, each, outputs, labels, count) for name, each in self.means.items())]

    def _read(self, values: Tensor, count: int) -> TestResult:
        if self._stream is not None:
            self._stream.synchronize()
        loss, *means = (values[0] / count).tolist()
        if not math.isfinite(loss):
            raise DivergenceError(
                f"the test loss is {loss}. A smaller client.lr (now {self.context.rule.lr:g}) "
                "or algorithm.eta usually helps."
            )
        found: dict[str, float] = {}
        for (name, metric), mean in zip(self.means.items(), means, strict=True):
            found[name] = metric.finish(mean) if metric.finish is not None else mean
        for name, metric in self.streams.items():
            found[name] = _number(name, metric.function.compute())
        data, per_client, per_label = self.context.data, {}, {}
        if self.owners is not None:
            per_client = self._per_group(values[1:], self.owners, data.clients)
        if self.per_label:
            labels = self.y.cpu().numpy().astype(np.int64)
            labels = labels if count == self.count or self.owners is None else np.where(self.owners >= 0, labels, -1)
            per_label = self._per_group(values[1:], labels, data.dataset.classes or 0)
        return TestResult({name: found[name] for name in self.names} | {LOSS: loss}, per_client, per_label)

    def _per_group(self, rows: Tensor, groups: NDArray[np.int64], most: int) -> dict[str, NDArray[np.float64]]:
        """Return the mean of each metric over the test examples of each group; -1 stands for none."""
        inside = groups >= 0
        owners = groups[inside]
        counts = np.bincount(owners, minlength=most).astype(float)
        table = {}
        for name, column in zip((LOSS, *self.means), rows.cpu().numpy()[inside].T, strict=True):
            sums = np.bincount(owners, weights=column, minlength=most)
            mean = np.divide(sums, counts, out=np.full(most, np.nan), where=counts > 0)
            finish = self.means[name].finish if name != LOSS else None
            table[name] = mean if finish is None else np.array([v if np.isnan(v) else finish(v) for v in mean])
        return table


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"compute() returned {type(value).__name__}; one number is needed", key=f"task.metrics.{name}"
        ) from error
