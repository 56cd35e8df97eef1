"""Datasets from arrays and from PyTorch datasets."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sized
from typing import Any, Protocol

import torch
from torch import Tensor

from offbeat.data.convert import as_inputs, as_labels, as_tensor, stacked
from offbeat.data.dataset import Dataset
from offbeat.data.lazy import Collate, Reader
from offbeat.data.preparing import preparing
from offbeat.errors import DataError, first_line
from offbeat.trees import Tree, map_tensors


def from_arrays(
    x: Any,
    y: Any,
    test_x: Any = None,
    test_y: Any = None,
    classes: int | None = None,
    vocabulary: int | None = None,
    owners: Any = None,
    test_owners: Any = None,
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
        test_owners: Owner of each test example, for metrics per client.

    Returns:
        The dataset.

    Raises:
        DataError: The arrays do not fit together.
    """
    if (test_x is None) != (test_y is None):
        raise DataError("test data: give both test_x and test_y, or neither")
    trees = [as_labels(each, name) for each, name in ((y, "y"), (test_y, "test_y")) if each is not None]
    if classes is None and all(_may_be_classes(labels) for labels in trees):
        classes = max((int(labels.max()) + 1 for labels in trees if labels.numel()), default=0)
    return Dataset(
        x=as_inputs(x, "x", vocabulary is not None),
        y=trees[0],
        test_x=None if test_x is None else as_inputs(test_x, "test_x", vocabulary is not None),
        test_y=None if test_x is None else trees[1],
        classes=classes,
        vocabulary=vocabulary,
        owners=_owners("owners", owners),
        test_owners=_owners("test_owners", test_owners),
    )


def _may_be_classes(labels: Tree) -> bool:
    one_integer = isinstance(labels, Tensor) and labels.dtype == torch.int64 and labels.ndim == 1
    return one_integer and (not labels.numel() or int(labels.min()) >= 0)


def _owners(name: str, values: Any) -> Tensor | None:
    """Return owners as int64."""
    t = None if values is None else as_tensor(values, name)
    if t is not None and t.is_floating_point():
        raise DataError(f"{name}: integers expected, got {t.dtype}")
    return None if t is None else t.to(torch.int64)


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
        collate: Turns a list of examples into (inputs, labels), such as one that pads sequences: all examples at once,
            or with `lazy` those of a batch. By default examples of the same shape are stacked.
        labels: The class label of each training example, for partitions by label; only with `lazy`. By default the
            `targets` of the dataset, if it has any.

    Returns:
        The dataset.

    Raises:
        DataError: The dataset is empty, cannot be read, or transforms its examples at random and `lazy` is not set.
    """
    reader = Reader(train, test, collate or stacked)
    if lazy:
        return _lazy(reader, classes, labels)
    if labels is not None:
        raise DataError("labels are for data that is read lazily; pass lazy=True")
    if isinstance(train, Sized) and hasattr(train, "__getitem__") and len(train):
        reject_random(reader)
    examples = _read(train)
    x, y = reader.batch(examples + (_read(test) if test is not None else []))  # together: padded to the same length
    if test is None:
        return from_arrays(x, y, classes=classes)
    halves = (map_tensors(operator.itemgetter(part), (x, y)) for part in _halves(len(examples)))
    (x, y), (test_x, test_y) = halves
    return from_arrays(x, y, test_x, test_y, classes=classes)


def reject_random(reader: Reader) -> None:
    """Raise a `DataError` if reading an example again gives something else."""
    if reader.is_random():
        raise DataError(
            "the dataset transforms its examples at random; reading it into memory would freeze the transformation. "
            "Pass lazy=True to read examples anew in every step, or use augment=…"
        )


def _halves(count: int) -> tuple[slice, slice]:
    return slice(None, count), slice(count, None)


def _read(items: Pairs | Iterable[Any]) -> list[Any]:
    """Read all examples. By length where possible: a map-style data set need not raise IndexError at its end."""
    iterator = iter(items) if isinstance(items, Iterable) else (items[i] for i in range(len(items)))
    examples: list[Any] = []
    with preparing("examples", len(items) if isinstance(items, Sized) else None) as report:
        try:
            for example in iterator:
                examples.append(example)
                report(len(examples))
        except Exception as error:  # a user's data set may raise anything
            raise DataError(
                f"example {len(examples)} cannot be read: {type(error).__name__}: {first_line(error)}"
            ) from error
    if not examples:
        raise DataError("the dataset is empty")
    return examples


def _lazy(reader: Reader, classes: int | None, labels: Any) -> Dataset:
    train, test = reader.train, reader.test
    if not isinstance(train, Sized) or not len(train):
        raise DataError("lazy reading needs a map-style dataset with a length, and at least one example")
    known = getattr(train, "targets", None) if labels is None else labels
    y = None if known is None else as_labels(known, "labels")
    if y is not None and not _may_be_classes(y):
        if labels is not None:
            raise DataError("labels: one class per example expected, as an integer from 0")
        y = None  # the targets of another task
    if y is not None and classes is None:
        classes = int(y.max()) + 1
    positions = None if test is None else torch.arange(len(test))
    return Dataset(
        x=torch.arange(len(train)), y=torch.zeros(len(train), dtype=torch.int64) if y is None else y,
        test_x=positions, test_y=positions, classes=classes, reader=reader, labeled=y is not None,
    )  # fmt: skip
