"""In-memory datasets and their partition among clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.data.preparing import preparing
from offbeat.errors import DataError

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Dataset:
    """Labeled examples for training and testing.

    Images may be stored as uint8, which takes a quarter of the memory. `prepare` converts a batch to floats in [0, 1]
    when it is used and standardizes it per channel if `mean` and `std` are set. With a `vocabulary`, inputs are tokens:
    integers from 0 to vocabulary − 1, which stay integers.
    """

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    vocabulary: int | None = None
    """Number of distinct tokens, or None if the inputs are numbers."""
    owners: Tensor | None = None
    """Owner of each training example as an integer, if the data provides one. The partition `natural` uses it."""

    def __post_init__(self) -> None:
        for split, x, y in (("training", self.x, self.y), ("test", self.test_x, self.test_y)):
            if len(x) != len(y) or len(x) == 0:
                raise DataError(f"{split} data: {len(x)} examples with {len(y)} labels")
            if y.dtype != torch.int64 or y.ndim != 1:
                raise DataError(f"{split} labels: one integer per example expected, got {y.dtype} of {list(y.shape)}")
            low, high = int(y.min()), int(y.max())
            if low < 0 or high >= self.classes:
                raise DataError(f"{split} labels: {low} to {high}, but there are {self.classes} classes")
            if x.is_floating_point() and not bool(torch.isfinite(x).all()):
                raise DataError(f"{split} data: some inputs are not finite")
            if self.vocabulary is not None:
                _check_tokens(split, x, self.vocabulary)
        if self.owners is not None and (self.owners.dtype != torch.int64 or self.owners.shape != self.y.shape):
            raise DataError(
                f"owners: one integer per training example expected, got {self.owners.dtype} of "
                f"{list(self.owners.shape)} for {len(self.y)} examples"
            )
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) != self.shape[0]:
                raise DataError(f"{name}: {len(values)} values for {self.shape[0]} channels")
        if self.x.shape[1:] != self.test_x.shape[1:]:
            raise DataError(f"training inputs are {list(self.x.shape[1:])}, test inputs {list(self.test_x.shape[1:])}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.x.shape[1:])

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the training inputs and labels on a device. They are copied there once."""
        return self._on("train", device, self.x, self.y)

    def test_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the test inputs and labels on a device. They are copied there once."""
        return self._on("test", device, self.test_x, self.test_y)

    def _on(self, split: str, device: torch.device, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        copies: dict[tuple[str, torch.device], tuple[Tensor, Tensor]] = self.__dict__.setdefault("_copies", {})
        if (split, device) not in copies:
            copies[split, device] = x.to(device), y.to(device)
        return copies[split, device]

    def prepare(self, raw: Tensor) -> Tensor:
        """Convert stored inputs (…, *shape) to what the model expects: floats, or int64 tokens."""
        if self.vocabulary is not None:
            return raw.long()
        x = raw.float() / 255 if raw.dtype == torch.uint8 else raw
        if self.mean is None or self.std is None:
            return x
        return (x - self._per_channel(x, self.mean)) / self._per_channel(x, self.std)

    def _per_channel(self, x: Tensor, values: Sequence[float]) -> Tensor:
        """Return the values shaped to broadcast over the channels of x.

        The tensor is filled on the device, because a captured CUDA graph must not copy from the host.
        """
        filled = torch.cat([x.new_full((1,), value) for value in values])
        return filled.view((-1,) + (1,) * (len(self.shape) - 1))


def _check_tokens(split: str, x: Tensor, vocabulary: int) -> None:
    if x.dtype not in (torch.uint8, torch.int64):
        raise DataError(f"{split} tokens: integers expected (uint8 or int64), got {x.dtype}")
    low, high = (int(x.min()), int(x.max())) if x.numel() else (0, 0)
    if low < 0 or high >= vocabulary:
        raise DataError(f"{split} tokens: {low} to {high}, but the vocabulary is {vocabulary}: 0 to {vocabulary - 1}")


def from_arrays(
    x: Any,
    y: Any,
    test_x: Any,
    test_y: Any,
    classes: int | None = None,
    vocabulary: int | None = None,
    owners: Any = None,
) -> Dataset:
    """Create a dataset from arrays or tensors.

    Args:
        x: Training inputs. uint8 inputs are scaled from 0…255 to [0, 1]; all others are used unchanged.
        y: Training labels, as integers.
        test_x: Test inputs.
        test_y: Test labels.
        classes: Number of classes; by default the largest label plus one.
        vocabulary: Number of distinct tokens. If given, the inputs are tokens from 0 to vocabulary − 1.
        owners: Owner of each training example, as an integer, for the partition `natural`.

    Returns:
        The dataset.

    Raises:
        DataError: The arrays do not fit together.
    """

    def inputs(values: Any) -> Tensor:
        t = torch.as_tensor(values)
        if vocabulary is not None and not t.is_floating_point():
            return t if t.dtype == torch.uint8 else t.to(torch.int64)
        return t if t.dtype == torch.uint8 else t.to(torch.float32)

    def integers(values: Any, name: str = "labels") -> Tensor:
        t = torch.as_tensor(values)
        if t.is_floating_point():
            raise DataError(f"{name}: integers expected, got {t.dtype}")
        return t.to(torch.int64)

    y_, test_y_ = integers(y), integers(test_y)
    if classes is None:
        classes = max((int(labels.max()) + 1 for labels in (y_, test_y_) if labels.numel()), default=0)
    owners_ = None if owners is None else integers(owners, "owners")
    return Dataset(inputs(x), y_, inputs(test_x), test_y_, classes, vocabulary=vocabulary, owners=owners_)


class Pairs(Protocol):
    """A map-style `torch.utils.data.Dataset` of (input, label) pairs, or a list of such pairs."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def from_datasets(train: Pairs | Iterable[Any], test: Pairs | Iterable[Any], classes: int | None = None) -> Dataset:
    """Create a dataset from two PyTorch datasets, which are read into memory once.

    Args:
        train: A map-style or iterable `torch.utils.data.Dataset` of (input, label) pairs for training.
        test: A dataset of the same kind for testing.
        classes: Number of classes; by default the largest label plus one.

    Returns:
        The dataset.
    """

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
        return torch.stack([torch.as_tensor(x) for x, _ in pairs]), torch.as_tensor(
            [torch.as_tensor(y).item() for _, y in pairs]
        )

    return from_arrays(*stack(train), *stack(test), classes=classes)


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
        outside = np.flatnonzero((order < 0) | (order >= len(dataset.y)))
        if len(outside):
            client = int(np.searchsorted(offsets, outside[0], side="right")) - 1
            raise DataError(f"client {client}: index {order[outside[0]]} in a dataset of {len(dataset.y)} examples")
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
        order, original = self.order.copy(), len(self.dataset.y)
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
        cells = owner * self.dataset.classes + self.dataset.y.numpy()[self.order]
        counts = np.bincount(cells, minlength=self.clients * self.dataset.classes)
        return counts.reshape(self.clients, self.dataset.classes)
