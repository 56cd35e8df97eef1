"""Metrics of a model on the test data, of the whole set and per client."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.client.context import TrainingContext
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


Score = Callable[[], TestResult]


class EvaluationInterrupted(Exception):  # noqa: N818 — not an error
    """Raised between two batches when the run is asked to stop."""


class Evaluator:
    """Evaluates x on the test data, or on the training data if there is no test data.

    On a GPU it runs in a stream and with a module of its own, concurrently with training.

    Args:
        context: Model, data and task.
        batch_size: Test examples per forward pass.
        examples: Number of test examples to use, a fixed random sample; all when left out.
        owners: The client to which each test example belongs, for metrics per client; -1 for none.
        stopping: Asks whether the evaluation should stop between two batches.
    """

    def __init__(
        self,
        context: TrainingContext,
        batch_size: int,
        *,
        examples: int | None = None,
        owners: NDArray[np.int64] | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.context, self.batch_size, self.owners, self.stopping = context, batch_size, owners, stopping
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

    def __call__(self, x: Tensor, buffers: Tensor | None = None) -> Score:
        """Start an evaluation.

        Args:
            x: The model's parameters.
            buffers: Its running statistics, if it has any.

        Returns:
            A function that waits for the evaluation and returns its metrics.

        Raises:
            EvaluationInterrupted: The evaluation was asked to stop.
        """
        if self._stream is None:
            values = self._values(x, buffers)
        else:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                values = self._values(x, buffers)
            for tensor in (x, buffers) if buffers is not None else (x,):
                tensor.record_stream(self._stream)
        return lambda: self._read(values)

    @torch.no_grad()
    def _values(self, x: Tensor, buffers: Tensor | None) -> Tensor:
        """Return the sums over the examples, or (examples, …) for metrics per client: the loss, then the means."""
        context = self.context
        context.layout.write(self.module, x)
        if buffers is not None:
            context.buffers.write(self.module, buffers)
        for metric in self.streams.values():
            metric.function.reset()
        sums = torch.zeros(1 + len(self.means), dtype=torch.float64, device=context.device)
        rows = []
        for first in range(0, self.count, self.batch_size):
            if self.stopping():
                raise EvaluationInterrupted
            here = slice(first, min(first + self.batch_size, self.count))
            values = self._batch(*self._examples(here))
            sums += torch.stack([value.sum().double() for value in values])
            if self.owners is not None:
                rows.append(torch.stack([value.double() for value in values], dim=1))
        return torch.cat([sums[None], *rows])

    def _examples(self, here: slice) -> tuple[Tree, Tree]:
        """Return the inputs and labels of a batch."""
        dataset = self.context.data.dataset
        if dataset.reader is not None:
            return self.context.read(self.x[here], 0, test=dataset.test_x is not None)
        raw, labels = (map_tensors(operator.itemgetter(here), tree) for tree in (self.x, self.y))
        return dataset.prepare(raw), dataset.prepare_labels(labels)

    def _batch(self, inputs: Tree, labels: Tree) -> list[Tensor]:
        """Return the losses of a batch and its values of each mean; other metrics update themselves."""
        context = self.context
        outputs = call(self.module, context.to_memory_format(inputs))
        outputs, count = in_dtype(outputs, torch.float32), size(labels)
        for name, metric in self.streams.items():
            try:
                metric.function.update(outputs, labels)
            except Exception as error:  # a user's metric may raise anything
                reason = f"it failed: {type(error).__name__}: {first_line(error)}"
                raise ConfigError(reason, key=f"task.metrics.{name}") from error
        losses = context.task.losses(outputs, labels, count)
        return [losses, *(per_example(name, each, outputs, labels, count) for name, each in self.means.items())]

    def _read(self, values: Tensor) -> TestResult:
        if self._stream is not None:
            self._stream.synchronize()
        loss, *means = (values[0] / self.count).tolist()
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
        per_client = self._per_client(values[1:]) if self.owners is not None else {}
        return TestResult({name: found[name] for name in self.names} | {LOSS: loss}, per_client)

    def _per_client(self, rows: Tensor) -> dict[str, NDArray[np.float64]]:
        """Return the mean of each metric over the test examples of each client."""
        assert self.owners is not None
        inside = self.owners >= 0
        owners, clients = self.owners[inside], self.context.data.clients
        counts = np.bincount(owners, minlength=clients).astype(float)
        table = {}
        for name, column in zip((LOSS, *self.means), rows.cpu().numpy()[inside].T, strict=True):
            sums = np.bincount(owners, weights=column, minlength=clients)
            mean = np.divide(sums, counts, out=np.full(clients, np.nan), where=counts > 0)
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


def test_owners(context: TrainingContext) -> NDArray[np.int64]:
    """Return the client to which each test example belongs, so that each client's test set resembles its training data.

    The test examples of each label are split among the clients in proportion to their training examples with that
    label; without class labels, in proportion to the sizes of the clients.
    """
    dataset, data = context.data.dataset, context.data
    if dataset.test_x is None:
        owners = np.full(len(dataset), -1, dtype=np.int64)
        for client in range(data.clients):
            owners[data.indices(client)] = client
        return owners
    count = size(dataset.test_y)
    if not dataset.has_class_labels or dataset.reader is not None:
        labels, shares = np.zeros(count, dtype=np.int64), np.asarray(data.sizes, dtype=float)[:, None]
    else:
        labels, shares = dataset.test_y.numpy(), data.label_counts().astype(float)
    owners = np.full(count, -1, dtype=np.int64)
    rng = stream(0, "test-owners")
    for label in range(shares.shape[1]):
        examples, total = rng.permutation(np.flatnonzero(labels == label)), shares[:, label].sum()
        if total and len(examples):
            cuts = np.rint(np.cumsum(shares[:, label]) / total * len(examples)).astype(np.int64)
            owners[examples] = np.searchsorted(cuts, np.arange(len(examples)), side="right")
    return owners


test_owners.__test__ = False  # type: ignore[attr-defined]
