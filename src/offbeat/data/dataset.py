"""A data set in memory, and the same divided among clients."""

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
    """Labelled examples for training and test.

    Images may stay uint8, a quarter of the memory; `prepare` turns them into floats in [0, 1] when a batch is used,
    and standardises them by channel where a mean and a standard deviation are given.  With a `vocabulary` inputs are
    tokens, integers from 0 to vocabulary − 1 that stay integers.
    """

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    vocabulary: int | None = None
    """How many different tokens there are; None where inputs are numbers."""
    owners: Tensor | None = None
    """Whose each training example is, as an integer, where the data itself says so: `natural` divides by it."""

    def __post_init__(self) -> None:
        for part, x, y in (("training", self.x, self.y), ("test", self.test_x, self.test_y)):
            if len(x) != len(y) or len(x) == 0:
                raise DataError(f"{part} data: {len(x)} examples with {len(y)} labels")
            if y.dtype != torch.int64 or y.ndim != 1:
                raise DataError(f"{part} labels: one integer an example expected, got {y.dtype} of {list(y.shape)}")
            low, high = int(y.min()), int(y.max())
            if low < 0 or high >= self.classes:
                raise DataError(f"{part} labels: {low} to {high}, but there are {self.classes} classes")
            if x.is_floating_point() and not bool(torch.isfinite(x).all()):
                raise DataError(f"{part} data: not every input is finite")
            if self.vocabulary is not None:
                _check_tokens(part, x, self.vocabulary)
        if self.owners is not None and (self.owners.dtype != torch.int64 or self.owners.shape != self.y.shape):
            raise DataError(
                f"owners: one integer a training example expected, got {self.owners.dtype} of "
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
        """The training data on a device, copied there once."""
        return self._on("train", device, self.x, self.y)

    def test_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The same for the test data."""
        return self._on("test", device, self.test_x, self.test_y)

    def _on(self, part: str, device: torch.device, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        places: dict[tuple[str, torch.device], tuple[Tensor, Tensor]] = self.__dict__.setdefault("_places", {})
        if (part, device) not in places:
            places[part, device] = x.to(device), y.to(device)
        return places[part, device]

    def prepare(self, raw: Tensor) -> Tensor:
        """(…, *shape) as stored → floats, or tokens as int64, as the model sees them."""
        if self.vocabulary is not None:
            return raw.long()
        x = raw.float() / 255 if raw.dtype == torch.uint8 else raw
        if self.mean is None or self.std is None:
            return x
        return (x - self._by_channel(x, self.mean)) / self._by_channel(x, self.std)

    def _by_channel(self, x: Tensor, values: Sequence[float]) -> Tensor:
        """Made on the device: a captured CUDA graph may not copy from the host."""
        filled = torch.cat([x.new_full((1,), value) for value in values])
        return filled.view((-1,) + (1,) * (len(self.shape) - 1))


def _check_tokens(part: str, x: Tensor, vocabulary: int) -> None:
    if x.dtype not in (torch.uint8, torch.int64):
        raise DataError(f"{part} tokens: integers expected (uint8 or int64), got {x.dtype}")
    low, high = (int(x.min()), int(x.max())) if x.numel() else (0, 0)
    if low < 0 or high >= vocabulary:
        raise DataError(f"{part} tokens: {low} to {high}, but the vocabulary is {vocabulary}: 0 to {vocabulary - 1}")


def from_arrays(
    x: Any,
    y: Any,
    test_x: Any,
    test_y: Any,
    classes: int | None = None,
    vocabulary: int | None = None,
    owners: Any = None,
) -> Dataset:
    """A data set from arrays or tensors.

    uint8 inputs are read as 0…255, anything else as it is.  `vocabulary=n` says that inputs are tokens 0 … n − 1, not
    numbers.  `owners` says whose each training example is, one integer each, for the partition `natural`.
    """

    def inputs(a: Any) -> Tensor:
        t = torch.as_tensor(a)
        if vocabulary is not None and not t.is_floating_point():
            return t if t.dtype == torch.uint8 else t.to(torch.int64)
        return t if t.dtype == torch.uint8 else t.to(torch.float32)

    def labels(a: Any, name: str = "labels") -> Tensor:
        t = torch.as_tensor(a)
        if t.is_floating_point():
            raise DataError(f"{name}: integers expected, got {t.dtype}")
        return t.to(torch.int64)

    y_, test_y_ = labels(y), labels(test_y)
    if classes is None:
        classes = max((int(part.max()) + 1 for part in (y_, test_y_) if part.numel()), default=0)
    whose = None if owners is None else labels(owners, "owners")
    return Dataset(inputs(x), y_, inputs(test_x), test_y_, classes, vocabulary=vocabulary, owners=whose)


class Pairs(Protocol):
    """A map-style `torch.utils.data.Dataset` of (input, label) pairs, or a list of them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def from_datasets(train: Pairs | Iterable[Any], test: Pairs | Iterable[Any], classes: int | None = None) -> Dataset:
    """A data set from two `torch.utils.data.Dataset`, map-style or iterable, read once into memory."""

    def stack(items: Pairs | Iterable[Any]) -> tuple[Tensor, Tensor]:
        # Indexing by length where there is one: a map-style Dataset need not raise IndexError at its end.
        each = iter(items) if isinstance(items, Iterable) else (items[i] for i in range(len(items)))
        pairs = []
        with preparing("examples", len(items) if isinstance(items, Sized) else None) as tell:
            for pair in each:
                pairs.append(pair)
                tell(len(pairs))
        if not pairs:
            raise DataError("the data set is empty")
        return torch.stack([torch.as_tensor(x) for x, _ in pairs]), torch.as_tensor(
            [torch.as_tensor(y).item() for _, y in pairs]
        )

    return from_arrays(*stack(train), *stack(test), classes=classes)


def _indices(client: int, part: Any) -> Indices:
    """One client's part of a partition, as indices and nothing that only looks like them."""
    try:
        array = np.asarray(part)
    except ValueError as error:
        raise DataError(f"partition: client {client}: {error}") from None
    if array.size and array.dtype.kind not in "iu":
        hint = "; of a mask make indices with numpy.flatnonzero" if array.dtype == bool else ""
        raise DataError(f"partition: client {client} has {array.dtype}, integers expected{hint}")
    if array.ndim != 1:
        raise DataError(f"partition: client {client} has an array of shape {list(array.shape)}, one dimension expected")
    return array.astype(np.int64, copy=False)


@dataclass(frozen=True)
class Federated:
    """A data set divided among clients: client i has the examples order[offsets[i]:offsets[i + 1]]."""

    dataset: Dataset
    order: Indices
    offsets: Indices

    @classmethod
    def of(cls, dataset: Dataset, parts: Sequence[Any]) -> Federated:
        if isinstance(parts, Mapping) or not isinstance(parts, Sequence | np.ndarray):
            raise DataError(
                f"partition: a list with one array of indices a client expected, got {type(parts).__name__}"
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
            raise DataError(f"client {client}: index {order[outside[0]]} in a data set of {len(dataset.y)} examples")
        return cls(dataset, order, offsets)

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Indices:
        return np.diff(self.offsets)

    def size(self, client: int) -> int:
        return int(self.offsets[client + 1] - self.offsets[client])

    def indices(self, client: int) -> Indices:
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def relabelled(self, clients: Collection[int], labels: Callable[[Tensor], Tensor]) -> Federated:
        """The same with other labels for some clients.  Of an example that others have as well they get a copy."""
        theirs = np.repeat(np.isin(np.arange(self.clients), list(clients)), self.sizes)
        shared = np.intersect1d(self.order[theirs], self.order[~theirs])
        order, known = self.order.copy(), len(self.dataset.y)
        moved = theirs & np.isin(order, shared)
        order[moved] = known + np.searchsorted(shared, order[moved])
        x, owners, copies = self.dataset.x, self.dataset.owners, torch.from_numpy(shared)
        y = torch.cat([self.dataset.y, self.dataset.y[copies]])
        index = torch.from_numpy(np.unique(order[theirs]))
        y[index] = labels(y[index])
        if len(shared):
            x = torch.cat([x, x[copies]])
            owners = None if owners is None else torch.cat([owners, owners[copies]])
        return replace(self, dataset=replace(self.dataset, x=x, y=y, owners=owners), order=order)

    def at(self, clients: Sequence[int], positions: Indices) -> Indices:
        """Positions (…, clients, B) in what these clients have → indices into the data set."""
        found: Indices = self.order[positions + self.offsets[list(clients)][:, None]]
        return found

    def label_counts(self) -> Indices:
        """(clients, classes): how many examples of each label a client has."""
        owner = np.repeat(np.arange(self.clients), self.sizes)
        cells = owner * self.dataset.classes + self.dataset.y.numpy()[self.order]
        counts = np.bincount(cells, minlength=self.clients * self.dataset.classes)
        return counts.reshape(self.clients, self.dataset.classes)
