"""Built-in tasks. A model's output is a tensor of scores, or an object with `logits`."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from offbeat.errors import ConfigError
from offbeat.options import Interval, Options
from offbeat.tasks.base import Task, scores, shape_of
from offbeat.tasks.metrics import F1, MeanIoU, Metric
from offbeat.trees import Tree, tensors

Smoothing = Annotated[float, Interval(ge=0, lt=1)]


@dataclass(kw_only=True, frozen=True)
class BuiltinTask(Task, Options):
    """Base of the built-in tasks."""

    @property
    def pool_key(self) -> Hashable:
        """The options themselves."""
        return self


@dataclass(kw_only=True, frozen=True)
class Classification(BuiltinTask):
    """Cross-entropy on one class label per example, and accuracy."""

    label_smoothing: Smoothing = 0.0
    """Share of the target probability that is spread over all classes."""

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Accuracy."""
        return {"accuracy": Metric(lambda outputs, y: scores(outputs).argmax(dim=1) == y, True, "%")}

    def loss(self, outputs: Any, labels: Any) -> Tensor:
        """Return the cross-entropy of each example."""
        return cross_entropy(scores(outputs), labels, reduction="none", label_smoothing=self.label_smoothing)

    def check_labels(self, labels: Tree, classes: int | None) -> None:
        """Check that there is one integer label per example."""
        if classes is not None:
            return
        if isinstance(labels, Tensor) and labels.dtype == torch.int64 and labels.ndim == 1:
            if int(labels.min()) < 0:
                raise ConfigError(f"classes are numbered from 0, but there is a label {int(labels.min())}", key="data")
            raise ConfigError("the number of classes is not known; pass classes=…", key="data")
        raise ConfigError(
            f"classification needs one integer label per example, but the labels are {shape_of(labels)}; set "
            'task = "regression", "multilabel", "language-modeling", "segmentation", or your own',
            key="task",
        )

    def check_outputs(self, outputs: Any, labels: Tree, classes: int | None) -> None:
        """Check that there is one score per class."""
        found, expected = tuple(scores(outputs).shape), (len(labels), classes)
        if found != expected:
            raise ConfigError(
                f"the model's output for {expected[0]} inputs is {found}, but the labels need {expected}: "
                f"one score for each of the {classes} classes "
                "(pass classes=… to from_arrays if some are absent)",
                key="model",
            )


def _aligned(outputs: Any, labels: Tensor) -> Tensor:
    """Return predictions in the shape of the labels; a trailing dimension of one is dropped."""
    predictions = scores(outputs)
    if predictions.ndim == labels.ndim + 1 and predictions.shape[-1] == 1:
        predictions = predictions.squeeze(-1)
    if predictions.shape != labels.shape:
        raise ConfigError(
            f"the model's output is {list(predictions.shape)}, but the labels are {list(labels.shape)}: "
            "one number per target is needed",
            key="model",
        )
    return predictions


def _errors(outputs: Any, labels: Tensor) -> Tensor:
    predictions = _aligned(outputs, labels)
    return predictions - labels.to(predictions.dtype)


def _per_example(labels: Tree) -> int:
    """Return how many labels an example has."""
    return math.prod(next(tensors(labels)).shape[1:])


@dataclass(kw_only=True, frozen=True)
class Regression(BuiltinTask):
    """Squared error on targets of any shape, with MAE and RMSE."""

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Mean absolute error and root mean squared error."""
        return {
            "mae": Metric(lambda outputs, y: _errors(outputs, y).abs(), False),
            "rmse": Metric(lambda outputs, y: _errors(outputs, y).square(), False, "", math.sqrt),
        }

    def loss(self, outputs: Any, labels: Any) -> Tensor:
        """Return the squared error of each target."""
        return _errors(outputs, labels).square()

    def output_size(self, labels: Tree, default: int) -> int:
        """Return the number of targets per example."""
        return _per_example(labels)

    def check_labels(self, labels: Tree, classes: int | None) -> None:
        """Check that the labels are numbers."""
        if not isinstance(labels, Tensor):
            raise ConfigError("regression needs labels in one tensor; define your own task for others", key="task")

    def check_outputs(self, outputs: Any, labels: Tree, classes: int | None) -> None:
        """Check that the predictions have the shape of the targets."""
        _aligned(outputs, labels)


@dataclass(kw_only=True, frozen=True)
class MultiLabel(BuiltinTask):
    """Binary cross-entropy on labels of zeros and ones, with F1 over all labels and exact matches."""

    @property
    def metrics(self) -> Mapping[str, Any]:
        """F1 over all labels, F1 averaged over labels, and the share of exact matches."""
        return {
            "f1": Metric(F1(scores), True, "%"),
            "f1_macro": Metric(F1(scores, "macro"), True, "%"),
            "exact_match_accuracy": Metric(
                lambda outputs, y: ((scores(outputs) > 0) == (y > 0.5)).flatten(1).all(dim=1), True, "%"
            ),
        }

    def loss(self, outputs: Any, labels: Any) -> Tensor:
        """Return the binary cross-entropy of each label."""
        values = scores(outputs)
        return binary_cross_entropy_with_logits(values, labels.to(values.dtype), reduction="none")

    def output_size(self, labels: Tree, default: int) -> int:
        """Return the number of labels per example."""
        return _per_example(labels)

    def check_labels(self, labels: Tree, classes: int | None) -> None:
        """Check that the labels are zeros and ones, several per example."""
        if not isinstance(labels, Tensor) or labels.ndim < 2 or not bool(((labels == 0) | (labels == 1)).all()):
            raise ConfigError(
                f"multilabel needs zeros and ones, one per example and label, but the labels are {shape_of(labels)}",
                key="task",
            )

    def check_outputs(self, outputs: Any, labels: Tree, classes: int | None) -> None:
        """Check that there is one score per label."""
        if scores(outputs).shape != labels.shape:
            raise ConfigError(
                f"the model's output is {list(scores(outputs).shape)}, but the labels are {list(labels.shape)}: "
                "one score per label is needed",
                key="model",
            )


@dataclass(kw_only=True, frozen=True)
class TokenTask(BuiltinTask):
    """Base of tasks with one class label per position; positions with the label `ignore` do not count."""

    ignore: int = -100
    """Label of positions that do not count, such as padding."""
    label_smoothing: Smoothing = 0.0
    """Share of the target probability that is spread over all classes."""

    channels: ClassVar[int] = 1  # dimension of the scores

    def loss(self, outputs: Any, labels: Any) -> Tensor:
        """Return the mean cross-entropy of each example's positions that count."""
        return self._mean_loss(outputs, labels, self.label_smoothing)

    def _mean_loss(self, outputs: Any, labels: Tensor, smoothing: float) -> Tensor:
        values, target = scores(outputs), labels.long()
        if self.channels == -1:  # a softmax over the last dimension is several times faster
            values, target = values.flatten(0, -2), target.flatten()
        losses = cross_entropy(values, target, reduction="none", ignore_index=self.ignore, label_smoothing=smoothing)
        return _mean_where(losses.view(labels.shape), labels != self.ignore)

    def check_labels(self, labels: Tree, classes: int | None) -> None:
        """Check that the labels are integers, several per example."""
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.ndim < 2:
            raise ConfigError(
                f"it needs one integer label per position, but the labels are {shape_of(labels)}", key="task"
            )

    def check_outputs(self, outputs: Any, labels: Tree, classes: int | None) -> None:
        """Check that there is a score per position and class."""
        values = scores(outputs).movedim(self.channels, 1)
        if values.ndim != labels.ndim + 1 or (values.shape[0], *values.shape[2:]) != tuple(labels.shape):
            raise ConfigError(
                f"the model's output is {list(scores(outputs).shape)}, but the labels are {list(labels.shape)}: "
                "one score per position and class is needed",
                key="model",
            )


def _mean_where(values: Tensor, valid: Tensor) -> Tensor:
    """Return the mean of each example's valid entries, or 0 if it has none."""
    values, valid = values.flatten(1), valid.flatten(1)
    return (values * valid).sum(dim=1) / valid.sum(dim=1).clamp(min=1)


def _position_accuracy(outputs: Any, labels: Tensor, channels: int, ignore: int) -> Tensor:
    right = scores(outputs).argmax(dim=channels) == labels
    return _mean_where(right.double(), labels != ignore)


@dataclass(kw_only=True, frozen=True)
class LanguageModeling(TokenTask):
    """Cross-entropy on the next token, with perplexity. Outputs are (B, T, vocabulary), labels (B, T)."""

    channels: ClassVar[int] = -1

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Perplexity, and accuracy per token."""
        return {
            "perplexity": Metric(self._plain_loss, False, "", _exp),
            "accuracy": Metric(lambda o, y: _position_accuracy(o, y, self.channels, self.ignore), True, "%"),
        }

    def _plain_loss(self, outputs: Any, labels: Any) -> Tensor:
        return self._mean_loss(outputs, labels, 0.0)


def _exp(mean: float) -> float:
    return math.exp(min(mean, 700.0))


@dataclass(kw_only=True, frozen=True)
class Segmentation(TokenTask):
    """Cross-entropy per pixel, with mean IoU. Outputs are (B, classes, H, W), labels (B, H, W)."""

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Mean intersection over union, and accuracy per pixel."""
        return {
            "mean_iou": Metric(MeanIoU(scores, self.ignore), True, "%"),
            "accuracy": Metric(lambda o, y: _position_accuracy(o, y, self.channels, self.ignore), True, "%"),
        }


TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "regression": Regression,
    "multilabel": MultiLabel,
    "language-modeling": LanguageModeling,
    "segmentation": Segmentation,
}
