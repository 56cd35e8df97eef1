"""Base class of tasks: what is learned. A task owns the loss and the metrics."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

from offbeat.errors import ConfigError
from offbeat.metric_info import LOSS, MetricInfo
from offbeat.tasks.metrics import Metric, as_metric
from offbeat.trees import Tree, describe, tensors

Loss = Callable[[Any, Any], Tensor]


class Task:
    """What is learned: a loss per example, and metrics of the test set.

    Pass functions, or override `loss` and `metrics` in a subclass.

    Args:
        loss: A function of the model's outputs and the labels that returns one loss per example, or several per
            example (such as one per token), which are averaged.
        metrics: Metrics by name: functions of outputs and labels that return one value per example, torchmetrics
            objects, or `Metric` objects. The first one is the main metric. Without metrics it is the loss.
    """

    def __init__(self, loss: Loss | None = None, metrics: Mapping[str, Any] | None = None) -> None:
        if loss is not None and not callable(loss):
            raise ConfigError(f"{loss!r} is not a function of (outputs, labels)", key="task.loss")
        if not isinstance(metrics or {}, Mapping):
            raise ConfigError(f"{metrics!r} is not a dict of metrics by name, such as {{'mae': …}}", key="task.metrics")
        self._loss = loss
        self._metrics = dict(metrics or {})

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Metrics by name; the first one is the main metric."""
        return getattr(self, "_metrics", {})

    def loss(self, outputs: Any, labels: Any) -> Tensor:
        """Return the losses of a batch, one per example or several, which are averaged.

        Args:
            outputs: What the model returned for the batch.
            labels: The labels of the batch.
        """
        loss: Loss | None = getattr(self, "_loss", None)
        if loss is None:
            raise ConfigError(f"{type(self).__name__} has no loss: pass loss=… or override `loss`", key="task")
        return loss(outputs, labels)

    def check_labels(self, labels: Tree, classes: int | None) -> None:
        """Check that the labels of a data set suit the task.

        Args:
            labels: The labels of the training examples; of a few, where examples are read when they are needed.
            classes: The number of classes, if there is one integer label per example.

        Raises:
            ConfigError: They do not.
        """

    def check_outputs(self, outputs: Any, labels: Tree, classes: int | None) -> None:
        """Check the outputs of a model for a few examples.

        Args:
            outputs: What the model returned.
            labels: The labels of these examples.
            classes: The number of classes, if there is one integer label per example.

        Raises:
            ConfigError: The outputs do not fit the labels.
        """

    def output_size(self, labels: Tree, default: int) -> int:
        """Return the number of outputs, per example or per position, with which a model is built.

        Args:
            labels: The labels of a few examples.
            default: The number of classes or tokens; for labels that are not integers, their number per example.
        """
        return default

    @property
    def pool_key(self) -> Hashable:
        """A value that is equal for tasks with which the same stack can be trained."""
        return id(self)

    # Used by offbeat ----------------------------------------------------------------------------------------------

    def losses(self, outputs: Any, labels: Any, count: int) -> Tensor:
        """Return one loss per example (count,).

        Raises:
            ConfigError: The loss does not return one value per example.
        """
        values = self.loss(outputs, labels)
        if not isinstance(values, Tensor) or values.ndim == 0 or len(values) != count or not values.is_floating_point():
            raise ConfigError(_wrong_loss(values, count), key="task.loss")
        return values.flatten(1).mean(dim=1) if values.ndim > 1 else values

    def resolved_metrics(self) -> dict[str, Metric]:
        """Return the metrics with their directions."""
        reserved = set(self.metrics) & RESERVED
        if reserved:
            raise ConfigError(f"{min(reserved)!r} is a column of every run; choose another name", key="task.metrics")
        return {name: as_metric(name, metric) for name, metric in self.metrics.items()}

    def metric_infos(self) -> list[MetricInfo]:
        """Return the names of the metrics and how to read them, the main metric first and the loss last."""
        infos = [MetricInfo(name, each.higher_is_better, each.unit) for name, each in self.resolved_metrics().items()]
        return [*infos, LOSS]

    @property
    def main(self) -> MetricInfo:
        """The main metric."""
        return self.metric_infos()[0]


RESERVED = {"version", "virtual_seconds", "loss", "updates", "bytes_up", "bytes_down", "client_steps", "wall_seconds",
            "staleness_mean", "staleness_max", "target", "seed", "algorithm", "client", "examples",
            "train_loss", "gradient_square", "heterogeneity"}  # fmt: skip


def _wrong_loss(values: Any, count: int) -> str:
    if isinstance(values, Tensor) and values.ndim == 0:
        return (
            "it returned a single number; one loss per example is needed, so that clients can be weighted and stacked: "
            "use reduction='none', or remove the final .mean()"
        )
    if isinstance(values, Tensor) and not values.is_floating_point():
        return f"it returned {values.dtype}, which has no gradient; losses are floating-point numbers"
    found = f"shape {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
    return f"it returned {found} for {count} examples; one loss per example is needed: {count} values"


def scores(outputs: Any) -> Tensor:
    """Return the scores of a model: its output tensor, or the `logits` of an output object or dict.

    Raises:
        ConfigError: The model returned something else.
    """
    if isinstance(outputs, Tensor):
        return outputs
    found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if isinstance(found, Tensor):
        return found
    raise ConfigError(
        f"the model returned {type(outputs).__name__}, which is neither a tensor nor an object with `logits`; "
        "define your own task with a loss that reads it",
        key="model",
    )


def in_dtype(outputs: Any, dtype: torch.dtype) -> Any:
    """Return outputs in the precision of the loss; a forward pass under autocast may return bfloat16."""
    if isinstance(outputs, Tensor):
        return outputs.to(dtype) if outputs.dtype != dtype and outputs.is_floating_point() else outputs
    if isinstance(outputs, dict):
        for name, value in outputs.items():
            if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != dtype:
                outputs[name] = value.to(dtype)
    return outputs


def shape_of(tree: Any) -> str:
    """Return the dtype and shape of one example of a tree, for messages."""
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors(tree)}
    return f"{'/'.join(sorted(dtypes))} of shape {describe(tree)}"
