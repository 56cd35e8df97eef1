"""Data for any number of clients, sampled on demand."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offbeat.data.dataset import Dataset, Indices
from offbeat.data.partitions import Partition, Rng
from offbeat.options import Positive, PositiveInt
from offbeat.random import fold_in_each, random_uint64


@dataclass(kw_only=True, frozen=True)
class Sampled(Partition):
    """`size` examples per client with a label distribution from Dir(alpha), sampled when the client is selected.

    Nothing is stored per client, so a million clients cost as much as ten. Clients may share examples, and a client may
    have an example twice.
    """

    size: PositiveInt = 20
    """Examples per client."""
    alpha: Positive = 0.3
    """Concentration: small values give each client few labels, large values make all clients alike."""

    def split(self, labels: Indices, clients: int, rng: Rng) -> list[Indices]:
        """Sample the parts of all clients at once. `Population` samples them on demand instead."""
        return list(sample(index_labels(labels), np.arange(clients), self, int(rng.integers(2**63))))


@dataclass(frozen=True)
class Population:
    """A dataset from which `Sampled` draws each client's examples with the client's own key."""

    dataset: Dataset
    clients: int
    partition: Sampled
    key: int

    @property
    def sizes(self) -> Indices:
        """Number of examples per client."""
        return np.full(self.clients, self.partition.size)

    def size(self, client: int) -> int:
        """Return the number of examples of a client."""
        return self.partition.size

    def indices(self, client: int) -> Indices:
        """Return the dataset indices of a client's examples."""
        indices: Indices = self._sample([client])[0]
        return indices

    def at(self, clients: Sequence[int], positions: Indices) -> Indices:
        """Convert positions (…, clients, B) within the clients' own examples to indices into the dataset."""
        positions = np.moveaxis(positions, -2, 0)
        rows = self._sample(clients)
        indices = np.take_along_axis(rows, positions.reshape(len(rows), -1), axis=1).reshape(positions.shape)
        return np.moveaxis(indices, 0, -2)

    def label_counts(self) -> Indices:
        """Return the number of examples per client and label, as an array (clients, classes)."""
        classes = self.dataset.classes or 0
        labels = self.dataset.labels[self._sample(range(self.clients))]
        return np.stack([np.bincount(row, minlength=classes) for row in labels])

    def _sample(self, clients: Sequence[int]) -> Indices:
        return sample(self._label_index, np.asarray(clients), self.partition, self.key)

    @functools.cached_property
    def _label_index(self) -> LabelIndex:
        return index_labels(self.dataset.labels)


LabelIndex = tuple[Indices, Indices, Indices]
"""Examples sorted by label, the position of each label's first example, and the number of examples per label."""


def index_labels(labels: Indices) -> LabelIndex:
    """Index the examples by label."""
    _, starts, counts = np.unique(np.sort(labels), return_index=True, return_counts=True)
    return np.argsort(labels, kind="stable"), starts, counts


def sample(index: LabelIndex, clients: Indices, partition: Sampled, key: int) -> Indices:
    """Sample examples for some clients.

    Labels come from a Pólya urn. This is equivalent to drawing a distribution from Dir(alpha) and then labels from that
    distribution (Blackwell and MacQueen, 1973), but needs only one uniform number per label: the next label is a fresh
    draw with weight alpha per class, or repeats each earlier label with weight 1.

    Args:
        index: The examples by label.
        clients: The clients.
        partition: The size and the concentration.
        key: The random key of the population.

    Returns:
        Dataset indices of shape (clients, size).
    """
    order, starts, counts = index
    classes = len(starts)
    bits = random_uint64(fold_in_each(key, clients), 2 * partition.size) >> np.uint64(11)
    uniform: NDArray[np.float64] = bits.astype(np.float64) * 2.0**-53
    fresh_weight = partition.alpha * classes
    labels = np.zeros((len(clients), partition.size), dtype=np.int64)
    for i in range(partition.size):
        ball = uniform[:, i] * (fresh_weight + i)
        fresh = np.minimum(ball / partition.alpha, classes - 1).astype(np.int64)
        earlier = np.clip(ball - fresh_weight, 0, max(i - 1, 0)).astype(np.int64)
        repeated = np.take_along_axis(labels, earlier[:, None], axis=1)[:, 0]
        labels[:, i] = np.where(ball < fresh_weight, fresh, repeated)
    return order[starts[labels] + (uniform[:, partition.size :] * counts[labels]).astype(np.int64)]
