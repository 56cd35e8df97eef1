"""Metrics: functions of outputs and labels that are evaluated over the test set, with their direction and unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from offbeat.errors import ConfigError, first_line

HIGHER = ("accuracy", "acc", "auc", "auroc", "bleu", "dice", "f1", "iou", "precision", "r2", "recall", "rouge", "top")
LOWER = ("error", "ece", "loss", "mae", "mape", "mse", "nll", "perplexity", "rmse")


@dataclass(frozen=True)
class Metric:
    """A metric of the test set.

    Args:
        function: A function of outputs and labels that returns one value per example (or several, which are averaged),
            or an object with `update(outputs, labels)`, `compute()` and `reset()`, such as a torchmetrics metric.
        higher_is_better: The direction; by default known for common names such as "accuracy" and "mae".
        unit: The unit in tables and figures; "%" multiplies the shown values by 100.
        finish: A function that is applied to the mean, such as `math.exp` for perplexity.
    """

    function: Any
    higher_is_better: bool | None = None
    unit: str = ""
    finish: Callable[[float], float] | None = None

    @property
    def streams(self) -> bool:
        """Whether the metric is an object that accumulates batches itself."""
        return hasattr(self.function, "update") and hasattr(self.function, "compute")


def as_metric(name: str, given: Any) -> Metric:
    """Return a metric with its direction, from a `Metric`, a function or a torchmetrics object.

    Raises:
        ConfigError: It is none of these.
    """
    metric = given if isinstance(given, Metric) else Metric(given)
    if not metric.streams and not callable(metric.function):
        raise ConfigError(
            f"{given!r} is neither a function of (outputs, labels) nor an object with update and compute",
            key=f"task.metrics.{name}",
        )
    if metric.higher_is_better is not None:
        return metric
    return Metric(metric.function, _direction(name, metric.function), metric.unit, metric.finish)


def _direction(name: str, function: Any) -> bool | None:
    """Return whether higher values are better; None if neither the metric nor its name tells."""
    known = getattr(function, "higher_is_better", None)
    if isinstance(known, bool):
        return known
    words = name.lower().replace("-", "_").split("_")
    if any(word.startswith(LOWER) for word in words):
        return False
    return True if any(word.startswith(HIGHER) for word in words) else None


def per_example(name: str, metric: Metric, outputs: Any, labels: Any, count: int) -> Tensor:
    """Return a metric's value for each example of a batch.

    Raises:
        ConfigError: The function fails or does not return one value per example.
    """
    try:
        values = metric.function(outputs, labels)
    except Exception as error:  # a user's function may raise anything
        raise ConfigError(
            f"it failed: {type(error).__name__}: {first_line(error)}", key=f"task.metrics.{name}"
        ) from error
    if not isinstance(values, Tensor) or values.ndim == 0 or len(values) != count:
        found = f"shape {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ConfigError(
            f"it returned {found} for {count} examples; return one value per example, or pass an object with "
            "update and compute for a metric of the whole set",
            key=f"task.metrics.{name}",
        )
    return values.double().flatten(1).mean(dim=1) if values.ndim > 1 else values.double()


class Counting:
    """Base of metrics that are computed from counts over the whole set."""

    higher_is_better = True

    def __init__(self) -> None:
        self.counts: Tensor | None = None

    def reset(self) -> None:
        """Forget all batches."""
        self.counts = None

    def update(self, outputs: Any, labels: Any) -> None:
        """Add a batch."""
        counts = self.count(outputs, labels)
        self.counts = counts if self.counts is None else self.counts + counts

    def count(self, outputs: Any, labels: Any) -> Tensor:
        """Return the counts of a batch."""
        raise NotImplementedError

    def compute(self) -> Tensor:
        """Return the metric over all batches."""
        raise NotImplementedError


class F1(Counting):
    """The F1 score of multi-label predictions, over all labels together (micro) or averaged over labels (macro).

    Args:
        scores: Returns the scores (B, labels) from the model's outputs; a score above 0 predicts the label.
        average: "micro" or "macro".
    """

    def __init__(self, scores: Callable[[Any], Tensor], average: str = "micro") -> None:
        super().__init__()
        self.scores, self.average = scores, average

    def count(self, outputs: Any, labels: Any) -> Tensor:
        """Return true positives, false positives and false negatives per label."""
        predicted, true = self.scores(outputs) > 0, labels > 0.5
        parts = (predicted & true, predicted & ~true, ~predicted & true)
        return torch.stack([part.flatten(0, -2).sum(dim=0).double() for part in parts])

    def compute(self) -> Tensor:
        """Return 2·TP/(2·TP + FP + FN), which counts as 0 for a label that never occurs."""
        assert self.counts is not None
        counts = self.counts.sum(dim=1, keepdim=True) if self.average == "micro" else self.counts
        hits, extra, missed = counts
        scores: Tensor = 2 * hits / (2 * hits + extra + missed).clamp(min=1)
        return scores.mean()


class MeanIoU(Counting):
    """Mean intersection over union of the classes that occur.

    Args:
        scores: Returns the scores (B, classes, …) from the model's outputs.
        ignore: Label of pixels that do not count.
    """

    def __init__(self, scores: Callable[[Any], Tensor], ignore: int) -> None:
        super().__init__()
        self.scores, self.ignore = scores, ignore

    def count(self, outputs: Any, labels: Any) -> Tensor:
        """Return the intersection and the union per class."""
        scores = self.scores(outputs)
        classes, valid = scores.shape[1], labels != self.ignore
        predicted, true = scores.argmax(dim=1)[valid], labels[valid].long()
        both, guessed, there = (
            torch.bincount(part, minlength=classes).double() for part in (true[predicted == true], predicted, true)
        )
        return torch.stack([both, guessed + there - both])

    def compute(self) -> Tensor:
        """Return the mean over the classes that occur in predictions or labels."""
        assert self.counts is not None
        shared, union = self.counts
        shares: Tensor = (shared / union)[union > 0]
        return shares.mean()
