"""A data set for any number of clients, whose parts are drawn when they are asked for."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offbeat.data.dataset import Dataset, Indices
from offbeat.data.partition import Partition, Rng
from offbeat.options import Count, Positive
from offbeat.seeds import onwards, words


@dataclass(kw_only=True, frozen=True)
class Sampled(Partition):
    """Every client has `size` examples with its own mix of labels from Dir(alpha), drawn when it is asked.

    Nothing is stored for a client, so a million of them cost as much as ten.  Clients may share examples, and one may
    have an example twice.
    """

    size: Count = 20
    """Examples a client."""
    alpha: Positive = 0.3
    """Small: few labels a client; large: all alike."""

    def split(self, labels: Indices, clients: int, rng: Rng) -> list[Indices]:
        """All parts at once, for few clients; `Population` has them one by one."""
        return list(draw(shelves(labels), np.arange(clients), self, int(rng.integers(2**63))))


@dataclass(frozen=True)
class Population:
    """A data set in which client i has what `Sampled` draws with its own key."""

    dataset: Dataset
    clients: int
    law: Sampled
    key: int

    @property
    def sizes(self) -> Indices:
        return np.full(self.clients, self.law.size)

    def size(self, client: int) -> int:
        return self.law.size

    def indices(self, client: int) -> Indices:
        own: Indices = self._drawn([client])[0]
        return own

    def at(self, clients: Sequence[int], positions: Indices) -> Indices:
        """Positions (…, clients, B) in what these clients have → indices into the data set."""
        places = np.moveaxis(positions, -2, 0)
        rows = self._drawn(clients)
        found = np.take_along_axis(rows, places.reshape(len(rows), -1), axis=1).reshape(places.shape)
        return np.moveaxis(found, 0, -2)

    def label_counts(self) -> Indices:
        """(clients, classes): how many examples of each label a client has."""
        classes = self.dataset.classes
        labels = self.dataset.y.numpy()[self._drawn(range(self.clients))]
        return np.stack([np.bincount(row, minlength=classes) for row in labels])

    def _drawn(self, clients: Sequence[int]) -> Indices:
        return draw(self._shelves, np.asarray(clients), self.law, self.key)

    @functools.cached_property
    def _shelves(self) -> Shelves:
        return shelves(self.dataset.y.numpy())


Shelves = tuple[Indices, Indices, Indices]
"""Examples in the order of their labels; where each label begins among them; how many it has."""


def shelves(labels: Indices) -> Shelves:
    _, starts, counts = np.unique(np.sort(labels), return_index=True, return_counts=True)
    return np.argsort(labels, kind="stable"), starts, counts


def draw(examples: Shelves, clients: Indices, law: Sampled, key: int) -> Indices:
    """(clients, size) indices of examples.

    Labels come from Pólya's urn, which is the same as to draw the mix from Dir(alpha) and then the labels from the mix
    (Blackwell and MacQueen 1973), but needs one uniform number a label: with weight alpha each label is a new one, with
    weight 1 that of an example before it.
    """
    order, starts, counts = examples
    classes = len(starts)
    numbers = words(onwards(key, clients), 2 * law.size) >> np.uint64(11)
    luck: NDArray[np.float64] = numbers.astype(np.float64) * 2.0**-53
    fresh = law.alpha * classes
    drawn = np.zeros((len(clients), law.size), dtype=np.int64)
    for place in range(law.size):
        ball = luck[:, place] * (fresh + place)
        new = np.minimum(ball / law.alpha, classes - 1).astype(np.int64)
        earlier = np.clip(ball - fresh, 0, max(place - 1, 0)).astype(np.int64)
        drawn[:, place] = np.where(ball < fresh, new, np.take_along_axis(drawn, earlier[:, None], axis=1)[:, 0])
    return order[starts[drawn] + (luck[:, law.size :] * counts[drawn]).astype(np.int64)]
