"""Data sets of Hugging Face's `datasets`, and the federated data sets and partitioners of Flower Datasets.

They are recognized by their interface, so that neither library is imported before a user brings one of its objects.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from offbeat.data.convert import as_tensor, standard
from offbeat.data.create import from_arrays, from_datasets, reject_random
from offbeat.data.dataset import Dataset, Indices
from offbeat.data.lazy import Reader
from offbeat.data.preparing import preparing
from offbeat.errors import ConfigError, DataError, first_line
from offbeat.trees import Tree

LABELS = ("label", "labels")  # names of label columns
TEST_SPLITS = ("test", "validation")
MASK = "attention_mask"
IGNORED = -100  # label of padding
CHUNK = 1000  # rows that are decoded at once
INDEX = "offbeat_index"


def from_hugging_face(
    train: Any,
    test: Any = None,
    *,
    inputs: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    owners: str | None = None,
    classes: int | None = None,
    pad: int | None = None,
    lazy: bool = False,
) -> Dataset:
    """Create a dataset from data sets of Hugging Face's `datasets`, or from one of Flower Datasets.

    Args:
        train: A `datasets.Dataset` for training, a `DatasetDict` with the splits "train" and "test" (or "validation"),
            or a `FederatedDataset` of Flower Datasets. Its format is respected where it is "torch" or a transform.
        test: A `datasets.Dataset` for testing, if `train` does not contain one.
        inputs: The input column, or several; by default all columns of numbers but the label. One column is passed to
            the model by position, several by keyword. Columns with a single number per example form one tensor.
        label: The label column, or several, which form one tensor; by default "label" or "labels".
        owners: A column that names the owner of each training example, for the partition `natural`.
        classes: Number of classes; by default that of the label column, or the largest label plus one.
        pad: Number that fills up shorter sequences; by default 0 if there is a column "attention_mask". Labels are
            filled up with -100, which does not count.
        lazy: Decode examples when they are needed instead of once into memory.

    Returns:
        The dataset.

    Raises:
        DataError: There are no such columns, or they do not hold numbers.
    """
    train, test = _splits(train, test)
    columns = Columns.of(_formatted(train), inputs, label, owners, pad)
    classes = _classes(train, columns.labels) if classes is None else classes
    parts = [_formatted(part) for part in (train, test) if part is not None]
    if lazy:
        last, known = parts[1] if test is not None else None, _class_labels(train, columns.labels)
        dataset = from_datasets(parts[0], last, classes, lazy=True, collate=columns.of_rows, labels=known)
    else:
        reject_random(Reader(parts[0], collate=columns.of_rows))
        x, y = columns.of_columns([_decoded(part, columns.names) for part in parts])
        test_x, test_y = (x[1], y[1]) if test is not None else (None, None)
        dataset = from_arrays(x[0], y[0], test_x, test_y, classes)
    return replace(dataset, table=train, owners=None if owners is None else _codes(train, owners))


def is_hugging_face(thing: Any) -> bool:
    """Return whether something is a data set, a dict of splits or a federated data set that can be converted."""
    if isinstance(thing, Mapping):
        return bool(thing) and all(is_hugging_face(part) for part in thing.values())
    return is_federated(thing) or (hasattr(thing, "column_names") and hasattr(thing, "with_format"))


def is_federated(thing: Any) -> bool:
    """Return whether something is a `FederatedDataset` of Flower Datasets."""
    return hasattr(thing, "load_partition") and hasattr(thing, "load_split") and hasattr(thing, "partitioners")


def is_partitioner(thing: Any) -> bool:
    """Return whether something is a `Partitioner` of Flower Datasets."""
    return hasattr(thing, "load_partition") and hasattr(type(thing), "num_partitions")


def partitioner_of(federated: Any) -> Any:
    """Return the partitioner of the training split of a `FederatedDataset`."""
    return federated.partitioners[_train_split(federated)]


def partition_of(partitioner: Any, dataset: Dataset) -> list[Indices]:
    """Return the examples of each client, as a partitioner of Flower Datasets divides them.

    Args:
        partitioner: The partitioner; it stays as it is, whether or not a data set is assigned to it.
        dataset: The data set. Its columns are those of the Hugging Face data set that it was made from; otherwise
            there is one, "label".

    Raises:
        ConfigError: The partitioner fails, divides columns and not examples, or has divided other data.
    """
    table = dataset.table
    if table is None:
        import datasets

        labels = dataset.labels if dataset.has_class_labels else np.zeros(len(dataset), dtype=np.int64)
        table = datasets.Dataset.from_dict({"label": labels})
    single = [name for name in table.column_names if hasattr(table.features[name], "dtype")]  # no lists, no images
    rows = table.with_format(None).select_columns(single).add_column(INDEX, list(range(len(dataset))))
    try:
        own = _copy(partitioner, None)
        own.dataset = rows
        parts = [own.load_partition(client) for client in range(own.num_partitions)]
        indices = [np.asarray(part[INDEX][:], dtype=np.int64) for part in parts]
        first = parts[0].select_columns(single)[:]
        assigned = getattr(partitioner, "_dataset", None)
        used = (
            assigned is not None and _copy(partitioner, assigned).load_partition(0).select_columns(single)[:] != first
        )
    except Exception as error:  # a partitioner may raise anything
        reason = f"{type(partitioner).__name__} cannot divide the data by example: {first_line(error)}"
        raise ConfigError(reason, key="data.partition") from error
    if used:
        raise ConfigError(
            f"{type(partitioner).__name__} has divided other data, or the same in another order; create a new one",
            key="data.partition",
        )
    return indices


def _copy(partitioner: Any, data: Any) -> Any:
    """Return a copy of a partitioner with generators of its own and another data set, which it accepts only once."""
    own = copy.copy(partitioner)
    own._dataset = None
    own = copy.deepcopy(own)
    own._dataset = data
    return own


def _splits(train: Any, test: Any) -> tuple[Any, Any]:
    """Return the data sets for training and testing."""
    if is_federated(train):
        federated, name = train, _train_split(train)
        train = federated.load_split(name)
        return train, _federated_test(federated, name) if test is None else test
    if isinstance(train, Mapping):
        if "train" not in train:
            raise DataError(f"no split 'train'; the data set has {', '.join(train)}; pass one of them")
        test = next((train[name] for name in TEST_SPLITS if name in train), None) if test is None else test
        train = train["train"]
    for part in (train, test):
        if part is not None and not (hasattr(part, "column_names") and hasattr(part, "__len__")):
            raise DataError(f"{type(part).__name__} is not a datasets.Dataset; load it without streaming")
    if not len(train):
        raise DataError("the dataset is empty")
    return train, test


def _train_split(federated: Any) -> str:
    names = list(federated.partitioners)
    return "train" if "train" in names else names[0]


def _federated_test(federated: Any, train: str) -> Any:
    for name in TEST_SPLITS:
        if name != train:
            try:
                return federated.load_split(name)
            except ValueError:  # there is no such split
                continue
    return None


def _formatted(dataset: Any) -> Any:
    """Return a data set whose rows are tensors, unless the user has set a transform."""
    return dataset if dataset.format["type"] == "custom" else dataset.with_format("torch")


def _classes(dataset: Any, labels: Sequence[str]) -> int | None:
    """Return the number of classes of a label column, if it declares them."""
    feature = dataset.features.get(labels[0]) if len(labels) == 1 and dataset.features else None
    found = getattr(feature, "num_classes", None)
    return int(found) if found is not None else None


def _class_labels(dataset: Any, labels: Sequence[str]) -> Tensor | None:
    """Return the stored label column, if there is one integer per example."""
    dtype = getattr((dataset.features or {}).get(labels[0]), "dtype", "") if len(labels) == 1 else ""
    if not str(dtype).startswith(("int", "uint", "bool")):
        return None
    return as_tensor(dataset.with_format(None)[labels[0]][:], "labels")


def _codes(dataset: Any, owners: str) -> Tensor:
    """Return the owner of each example as an integer."""
    if owners not in dataset.column_names:
        raise DataError(f"no column {owners!r}; the data set has {', '.join(dataset.column_names)}")
    names = np.asarray(dataset.with_format(None)[owners][:])
    return torch.from_numpy(np.unique(names, return_inverse=True)[1].reshape(-1))


def _decoded(dataset: Any, names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the columns of a data set as lists of examples."""
    columns: dict[str, list[Any]] = {name: [] for name in names}
    with preparing("examples", len(dataset)) as report:
        for first in range(0, len(dataset), CHUNK):
            rows = dataset[first : first + CHUNK]
            for name in names:
                columns[name] += list(rows[name])
            report(min(first + CHUNK, len(dataset)))
    return columns


@dataclass(frozen=True)
class Columns:
    """The columns of a data set that are inputs and labels, and how they become tensors."""

    inputs: tuple[str, ...]
    labels: tuple[str, ...]
    pad: int | None

    @classmethod
    def of(cls, dataset: Any, inputs: Any, label: Any, owners: str | None, pad: int | None) -> Columns:
        """Choose the columns; the arguments are those of `from_hugging_face`."""
        row = dataset[0]
        for name in [*_names(inputs), *_names(label)]:
            if name not in row:
                raise DataError(f"no column {name!r}; the data set has {', '.join(row)}")
        labels = _names(label) or tuple(name for name in LABELS if name in row)[:1]
        if not labels:
            raise DataError(f"no column 'label' or 'labels'; pass label=…, one of {', '.join(row)}")
        found = _names(inputs)
        if not found:
            found = tuple(name for name in row if name not in (*labels, owners) and _is_numeric(row[name]))
        if not found:
            raise DataError(
                f"no input column holds numbers; the data set has {', '.join(row)}: convert text with "
                "dataset.map(tokenizer…) and pass inputs=…"
            )
        return cls(found, labels, 0 if pad is None and MASK in found else pad)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns."""
        return self.inputs + self.labels

    def of_rows(self, rows: list[Mapping[str, Any]]) -> tuple[Tree, Tree]:
        """Return the inputs and labels of some rows."""
        inputs, labels = self.of_columns([{name: [row[name] for row in rows] for name in self.names}])
        return inputs[0], labels[0]

    def of_columns(self, parts: list[dict[str, list[Any]]]) -> tuple[list[Tree], list[Tree]]:
        """Return the inputs and labels of each part; sequences have the same length in all parts."""
        sizes = [len(part[self.names[0]]) for part in parts]
        whole = {name: [value for part in parts for value in part[name]] for name in self.names}
        inputs = [_column(name, whole[name], self.pad) for name in self.inputs]
        labels = [_column(name, whole[name], IGNORED) for name in self.labels]
        features = all(column.ndim == 1 for column in inputs)
        joined = torch.stack(inputs, dim=1).float() if features else None
        found: list[Tree] = []
        for each in zip(*(torch.split(column, sizes) for column in inputs), strict=True):
            found.append(each[0] if len(each) == 1 else dict(zip(self.inputs, each, strict=True)))
        if joined is not None:
            found = list(torch.split(joined, sizes))
        return found, list(torch.split(_one(labels), sizes))


def _names(given: str | Iterable[str] | None) -> tuple[str, ...]:
    return () if given is None else (given,) if isinstance(given, str) else tuple(given)


def _one(labels: list[Tensor]) -> Tensor:
    return labels[0] if len(labels) == 1 else torch.stack(labels, dim=1)


def _is_numeric(value: Any) -> bool:
    if isinstance(value, list) and value:
        return _is_numeric(value[0])
    return isinstance(value, Tensor | np.ndarray | int | float | np.number)


def _column(name: str, values: list[Any], fill: int | None) -> Tensor:
    """Return a column as one tensor; sequences of different lengths are filled up.

    Raises:
        DataError: The values are not numbers, or cannot be filled up.
    """
    examples = [as_tensor(value, f"column {name!r}") for value in values]
    shapes = {each.shape for each in examples}
    if len(shapes) == 1:
        column = torch.stack(examples)
        converted: Tensor = column if column.dtype == torch.uint8 else standard(column)
        return converted
    if any(len(shape) != 1 for shape in shapes):
        raise DataError(f"column {name!r}: examples of different shapes; resize them with map or with_transform")
    if fill is None:
        raise DataError(
            f"column {name!r}: sequences of different lengths, but there is no column {MASK!r} to tell padding; "
            "pass pad=0, or pad the sequences with map"
        )
    padded: Tensor = standard(pad_sequence(examples, batch_first=True, padding_value=fill))
    return padded
