"""In-memory datasets and their partition among clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.data.convert import scaled
from offbeat.data.lazy import Reader
from offbeat.errors import DataError
from offbeat.trees import Tree, describe, map_tensors, size, tensors

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Dataset:
    """Labeled examples for training and, optionally, for testing.

    Inputs and labels are tensors, or trees of tensors (dicts, tuples) whose first dimension is the example; labels may
    have any shape and type. With one integer label per example, `classes` is their number; otherwise it is None.

    Images may be stored as uint8, which takes a quarter of the memory. `prepare` converts a batch to floats in [0, 1]
    when it is used and standardizes it per channel if `mean` and `std` are set. With a `vocabulary`, inputs are tokens:
    integers from 0 to vocabulary − 1, which stay integers.
    """

    x: Tree
    y: Tree
    test_x: Tree = None
    test_y: Tree = None
    classes: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    vocabulary: int | None = None
    """Number of distinct tokens, or None if the inputs are numbers."""
    reader: Reader | None = None
    """Reads examples when they are needed; `x` and `test_x` then hold positions, and `y` labels if they are known."""
    labeled: bool = True
    """Whether `y` holds the labels; False if they are known only to the reader."""
    owners: Tensor | None = None
    """Owner of each training example as an integer, if the data provides one. The partition `natural` uses it."""
    table: Any = None
    """The Hugging Face data set of the training examples, if there is one; Flower's partitioners read its columns."""

    test_owners: Tensor | None = None
    """Owner of each test example, so that a client is tested on the examples of its own owners."""

    def __post_init__(self) -> None:
        splits = [("training", self.x, self.y)]
        if self.test_x is not None and self.reader is None:
            splits.append(("test", self.test_x, self.test_y))
        for split, x, y in splits:
            _check_split(split, x, y, self.classes)
            if self.vocabulary is not None:
                _check_tokens(split, x, self.vocabulary)
        _check_owners("owners", "training", self.owners, len(self))
        _check_owners("test_owners", "test", self.test_owners, size(self.test_y))
        if self.test_owners is not None and self.owners is None:
            raise DataError("test_owners: give the owners of the training examples as well")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) != self.shape[0]:
                raise DataError(f"{name}: {len(values)} values for {self.shape[0]} channels")
        if self.test_x is not None and describe(self.x) != describe(self.test_x):
            raise DataError(f"training inputs are {describe(self.x)}, test inputs {describe(self.test_x)}")

    def __len__(self) -> int:
        """Return the number of training examples."""
        return size(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input; of its first tensor if it is a tree."""
        inputs = self.x if self.reader is None else self.reader.read([0], 0)[0]
        return tuple(next(tensors(inputs)).shape[1:])

    @property
    def outputs(self) -> int:
        """Number of outputs that a model needs per example, or per position of a sequence or image."""
        if self.classes is not None:
            return self.classes
        y = next(tensors(self.y if self.reader is None else self.reader.read([0], 0)[1]))
        if y.is_floating_point() or y.dtype == torch.bool:
            return math.prod(y.shape[1:])
        return self.vocabulary or int(y.max()) + 1

    @property
    def has_class_labels(self) -> bool:
        """Whether there is one integer label per example, known without reading the examples."""
        return self.classes is not None and self.labeled

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class label of each training example.

        Raises:
            DataError: The examples have no class labels.
        """
        if not self.has_class_labels:
            raise DataError("this needs one integer label per example, but the data set has labels of another kind")
        labels: NDArray[np.int64] = self.y.numpy()
        return labels

    def on(self, device: torch.device) -> tuple[Tree, Tree]:
        """Return the training inputs and labels on a device. They are copied there once."""
        return self._on("train", device, self.x, self.y)

    def test_on(self, device: torch.device) -> tuple[Tree, Tree]:
        """Return the test inputs and labels on a device. They are copied there once."""
        return self._on("test", device, self.test_x, self.test_y)

    def _on(self, split: str, device: torch.device, x: Tree, y: Tree) -> tuple[Tree, Tree]:
        copies: dict[tuple[str, torch.device], tuple[Tree, Tree]] = self.__dict__.setdefault("_copies", {})
        if (split, device) not in copies:
            copies[split, device] = map_tensors(lambda t: t.to(device), x), map_tensors(lambda t: t.to(device), y)
        return copies[split, device]

    def prepare(self, raw: Tree) -> Tree:
        """Convert stored inputs (…, *shape) to what the model expects: floats or int64 tokens; trees stay unchanged."""
        if not isinstance(raw, Tensor):
            return raw
        if self.vocabulary is not None:
            return raw.long()
        x = scaled(raw)
        if self.mean is None or self.std is None:
            return x
        return (x - self._per_channel(x, self.mean)) / self._per_channel(x, self.std)

    def prepare_labels(self, raw: Tree) -> Tree:
        """Convert stored labels to what a loss expects: uint8 becomes int64, everything else stays unchanged."""
        return map_tensors(lambda t: t.long() if t.dtype == torch.uint8 else t, raw)

    def _per_channel(self, x: Tensor, values: Sequence[float]) -> Tensor:
        """Return the values shaped to broadcast over the channels of x.

        The tensor is filled on the device, because a captured CUDA graph must not copy from the host.
        """
        filled = torch.cat([x.new_full((1,), value) for value in values])
        return filled.view((-1,) + (1,) * (len(self.shape) - 1))


def _check_owners(name: str, split: str, owners: Tensor | None, count: int) -> None:
    if owners is not None and (owners.dtype != torch.int64 or owners.shape != (count,)):
        raise DataError(
            f"{name}: one integer per {split} example expected, got {owners.dtype} of {list(owners.shape)} for "
            f"{count} examples"
        )


def _check_split(split: str, x: Tree, y: Tree, classes: int | None) -> None:
    """Check that inputs and labels belong together."""
    inputs = {len(tensor) for tensor in tensors(x)}
    if inputs != {size(y)} or not size(y):
        raise DataError(f"{split} data: {', '.join(map(str, sorted(inputs))) or 'no'} examples with {size(y)} labels")
    if {len(tensor) for tensor in tensors(y)} != inputs:
        raise DataError(f"{split} labels: the tensors have different lengths")
    for what, tree in (("data: some inputs", x), ("labels: some", y)):
        if not all(bool(torch.isfinite(t).all()) for t in tensors(tree) if t.is_floating_point()):
            raise DataError(f"{split} {what} are not finite")
    if classes is None:
        return
    if not isinstance(y, Tensor) or y.dtype != torch.int64 or y.ndim != 1:
        found = f"{y.dtype} of {list(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise DataError(f"{split} labels: one integer per example expected, got {found}")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise DataError(f"{split} labels: {low} to {high}, but there are {classes} classes")


def _check_tokens(split: str, x: Tree, vocabulary: int) -> None:
    if not isinstance(x, Tensor):
        raise DataError(f"{split} tokens: one tensor expected; leave out vocabulary for trees of inputs")
    if x.dtype not in (torch.uint8, torch.int64):
        raise DataError(f"{split} tokens: integers expected (uint8 or int64), got {x.dtype}")
    low, high = (int(x.min()), int(x.max())) if x.numel() else (0, 0)
    if low < 0 or high >= vocabulary:
        raise DataError(f"{split} tokens: {low} to {high}, but the vocabulary is {vocabulary}: 0 to {vocabulary - 1}")


def _indices(client: int, part: Any) -> Indices:
    """Convert one client's part of a partition to indices, and reject everything that merely resembles them."""
    try:
        array = np.asarray(part)
    except ValueError as error:
        raise DataError(f"partition: client {client}: {error}") from None
    if array.size and array.dtype.kind not in "iu":
        hint = "; convert a mask with numpy.flatnonzero" if array.dtype == bool else ""
        raise DataError(f"partition: client {client} has {array.dtype}, integers expected{hint}")
    if array.ndim != 1:
        raise DataError(f"partition: client {client} has an array of shape {list(array.shape)}, one dimension expected")
    return array.astype(np.int64, copy=False)


@dataclass(frozen=True)
class PartitionedDataset:
    """A dataset with a fixed partition: client i has the examples order[offsets[i]:offsets[i + 1]]."""

    dataset: Dataset
    order: Indices
    offsets: Indices

    @classmethod
    def of(cls, dataset: Dataset, parts: Sequence[Any]) -> PartitionedDataset:
        """Partition a dataset.

        Args:
            dataset: The dataset.
            parts: One array of example indices per client.

        Returns:
            The partitioned dataset.

        Raises:
            DataError: A part is empty, is not an array of integers, or has an index outside the dataset.
        """
        if isinstance(parts, Mapping) or not isinstance(parts, Sequence | np.ndarray):
            raise DataError(
                f"partition: a list with one array of indices per client expected, got {type(parts).__name__}"
            )
        arrays = [_indices(client, part) for client, part in enumerate(parts)]
        if not arrays:
            raise DataError("the partition has no clients")
        sizes = np.fromiter(map(len, arrays), dtype=np.int64, count=len(arrays))
        if not sizes.all():
            client = int(np.argmin(sizes))
            raise DataError(f"data.partition: client {client} has no data: every client needs at least one example")
        order, offsets = np.concatenate(arrays), np.concatenate([[0], np.cumsum(sizes)])
        outside = np.flatnonzero((order < 0) | (order >= len(dataset)))
        if len(outside):
            client = int(np.searchsorted(offsets, outside[0], side="right")) - 1
            raise DataError(f"client {client}: index {order[outside[0]]} in a dataset of {len(dataset)} examples")
        return cls(dataset, order, offsets)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Indices:
        """Number of examples per client."""
        return np.diff(self.offsets)

    def size(self, client: int) -> int:
        """Return the number of examples of a client."""
        return int(self.offsets[client + 1] - self.offsets[client])

    def indices(self, client: int) -> Indices:
        """Return the dataset indices of a client's examples."""
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def relabeled(self, clients: Collection[int], labels: Callable[[Tensor], Tensor]) -> PartitionedDataset:
        """Return a copy in which some clients have different labels.

        Examples that these clients share with others are duplicated, so that the others keep their labels.

        Args:
            clients: The clients to relabel.
            labels: A function from the old labels to the new ones.

        Returns:
            The relabeled dataset.
        """
        theirs = np.repeat(np.isin(np.arange(self.clients), list(clients)), self.sizes)
        shared = np.intersect1d(self.order[theirs], self.order[~theirs])
        order, original = self.order.copy(), len(self.dataset)
        moved = theirs & np.isin(order, shared)
        order[moved] = original + np.searchsorted(shared, order[moved])
        x, owners, copies = self.dataset.x, self.dataset.owners, torch.from_numpy(shared)
        y = torch.cat([self.dataset.y, self.dataset.y[copies]])
        index = torch.from_numpy(np.unique(order[theirs]))
        y[index] = labels(y[index])
        if len(shared):
            x = torch.cat([x, x[copies]])
            owners = None if owners is None else torch.cat([owners, owners[copies]])
        return replace(self, dataset=replace(self.dataset, x=x, y=y, owners=owners), order=order)

    def at(self, clients: Sequence[int], positions: Indices) -> Indices:
        """Convert positions (…, clients, B) within the clients' own examples to indices into the dataset."""
        indices: Indices = self.order[positions + self.offsets[list(clients)][:, None]]
        return indices

    def label_counts(self) -> Indices:
        """Return the number of examples per client and label, as an array (clients, classes)."""
        owner = np.repeat(np.arange(self.clients), self.sizes)
        labels, classes = self.dataset.labels, self.dataset.classes or 0
        counts = np.bincount(owner * classes + labels[self.order], minlength=self.clients * classes)
        return counts.reshape(self.clients, classes)
