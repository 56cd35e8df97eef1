"""Datasets from arrays and from PyTorch datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import default_collate

from offbeat.data.dataset import Dataset
from offbeat.data.lazy import Collate, Reader
from offbeat.data.preparing import preparing
from offbeat.errors import DataError
from offbeat.trees import Tree


def from_arrays(
    x: Any,
    y: Any,
    test_x: Any = None,
    test_y: Any = None,
    classes: int | None = None,
    vocabulary: int | None = None,
    owners: Any = None,
) -> Dataset:
    """Create a dataset from arrays or tensors.

    Args:
        x: Training inputs: an array, or a dict or tuple of arrays that the model receives as arguments. A uint8 array
            is scaled from 0…255 to [0, 1]; all others are used unchanged.
        y: Training labels of any shape and type: one integer per example for classification, floats for regression.
        test_x: Test inputs; without them only the training loss is known.
        test_y: Test labels.
        classes: Number of classes; by default the largest label plus one, where labels are one integer per example.
        vocabulary: Number of distinct tokens. If given, the inputs are tokens from 0 to vocabulary − 1.
        owners: Owner of each training example, as an integer, for the partition `natural`.

    Returns:
        The dataset.

    Raises:
        DataError: The arrays do not fit together.
    """

    def inputs(values: Any) -> Tree:
        if isinstance(values, Mapping | tuple):
            return _tree(values)
        t = torch.as_tensor(values)
        if vocabulary is not None and not t.is_floating_point():
            return t if t.dtype == torch.uint8 else t.to(torch.int64)
        return t if t.dtype == torch.uint8 else t.to(torch.float32)

    if (test_x is None) != (test_y is None):
        raise DataError("test data: give both test_x and test_y, or neither")
    trees = [_labels(each) for each in (y, test_y) if each is not None]
    if classes is None and all(_are_class_labels(labels) for labels in trees):
        classes = max((int(labels.max()) + 1 for labels in trees if labels.numel()), default=0)
    owners_ = None if owners is None else torch.as_tensor(owners)
    if owners_ is not None and owners_.is_floating_point():
        raise DataError(f"owners: integers expected, got {owners_.dtype}")
    return Dataset(
        x=inputs(x),
        y=trees[0],
        test_x=None if test_x is None else inputs(test_x),
        test_y=None if test_x is None else trees[1],
        classes=classes,
        vocabulary=vocabulary,
        owners=None if owners_ is None else owners_.to(torch.int64),
    )


def _tree(values: Any) -> Tree:
    """Return arrays as tensors: floats in single precision, integers as int64."""
    if isinstance(values, Mapping):
        return {str(name): _tree(value) for name, value in values.items()}
    if isinstance(values, tuple):
        return tuple(_tree(value) for value in values)
    t = torch.as_tensor(values)
    if t.is_floating_point():
        return t.to(torch.float32)
    return t if t.dtype == torch.bool else t.to(torch.int64)


def _labels(values: Any) -> Tree:
    """Return labels as tensors; several uint8 labels per example stay as they are, in an eighth of the memory."""
    t = None if isinstance(values, Mapping | tuple) else torch.as_tensor(values)
    return t if t is not None and t.dtype == torch.uint8 and t.ndim > 1 else _tree(values)


def _are_class_labels(labels: Tree) -> bool:
    return isinstance(labels, Tensor) and labels.dtype == torch.int64 and labels.ndim == 1


class Pairs(Protocol):
    """A map-style `torch.utils.data.Dataset` of (input, label) pairs, or a list of such pairs."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def from_datasets(
    train: Pairs | Iterable[Any],
    test: Pairs | Iterable[Any] | None = None,
    classes: int | None = None,
    *,
    lazy: bool = False,
    collate: Collate | None = None,
    labels: Any = None,
) -> Dataset:
    """Create a dataset from PyTorch datasets.

    Args:
        train: A map-style or iterable `torch.utils.data.Dataset` of (input, label) pairs for training.
        test: A dataset of the same kind for testing, if there is one.
        classes: Number of classes; by default the largest label plus one.
        lazy: Read examples when they are needed instead of once into memory. This is necessary for datasets that
            transform their examples at random, or do not fit into memory.
        collate: Turns a list of examples into (inputs, labels), such as one that pads sequences; only with `lazy`.
        labels: The class label of each training example, for partitions by label; only with `lazy`. By default the
            `targets` of the dataset, if it has any.

    Returns:
        The dataset.

    Raises:
        DataError: The dataset is empty, or it transforms its examples at random and `lazy` is not set.
    """
    if lazy:
        return _lazy(train, test, classes, Reader(train, test, collate or default_collate), labels)
    if collate is not None or labels is not None:
        raise DataError("collate and labels are for data that is read lazily; pass lazy=True")
    if isinstance(train, Sized) and hasattr(train, "__getitem__") and len(train) and Reader(train).is_random():
        raise DataError(
            "the dataset transforms its examples at random; reading it into memory would freeze the transformation. "
            "Pass lazy=True to read examples anew in every step, or use augment=…"
        )

    def stack(items: Pairs | Iterable[Any]) -> tuple[Tensor, Tensor]:
        # Index by length where possible: a map-style Dataset need not raise IndexError at its end.
        iterator = iter(items) if isinstance(items, Iterable) else (items[i] for i in range(len(items)))
        pairs = []
        with preparing("examples", len(items) if isinstance(items, Sized) else None) as report:
            for pair in iterator:
                pairs.append(pair)
                report(len(pairs))
        if not pairs:
            raise DataError("the dataset is empty")
        return torch.stack([torch.as_tensor(x) for x, _ in pairs]), torch.stack([torch.as_tensor(y) for _, y in pairs])

    test_x, test_y = stack(test) if test is not None else (None, None)
    return from_arrays(*stack(train), test_x, test_y, classes=classes)


def _lazy(train: Any, test: Any, classes: int | None, reader: Reader, labels: Any) -> Dataset:
    if not isinstance(train, Sized) or not len(train):
        raise DataError("lazy reading needs a map-style dataset with a length, and at least one example")
    labels = getattr(train, "targets", None) if labels is None else labels
    y = torch.zeros(len(train), dtype=torch.int64) if labels is None else torch.as_tensor(labels).to(torch.int64)
    if labels is not None and classes is None:
        classes = int(y.max()) + 1
    positions = None if test is None else torch.arange(len(test))
    return Dataset(
        x=torch.arange(len(train)), y=y, test_x=positions, test_y=positions, classes=classes,
        reader=reader, labeled=labels is not None,
    )  # fmt: skip
