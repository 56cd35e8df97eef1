"""How a data set is divided among clients.  Every law here gives each example to at most one client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import ConfigError
from offbeat.options import Count, Options, Positive

Indices = NDArray[np.int64]
Rng = np.random.Generator


class Partition(Options, ABC):
    @abstractmethod
    def split(self, labels: Indices, clients: int, rng: Rng) -> list[Indices]:
        """One array of example indices a client."""


@dataclass(kw_only=True, frozen=True)
class IID(Partition):
    """Shuffled and dealt out evenly."""

    def split(self, labels: Indices, clients: int, rng: Rng) -> list[Indices]:
        return np.array_split(rng.permutation(len(labels)), clients)


@dataclass(kw_only=True, frozen=True)
class Dirichlet(Partition):
    """Each label's examples are divided in proportions drawn from Dir(alpha): small alpha, few labels a client.

    A client left with fewer than `min_size` examples gets random ones from the largest clients, so that a draw is
    mended rather than repeated until it happens to fit (at small alpha and many clients it never would).
    """

    alpha: Positive = 0.3
    """Small: few labels a client; large: all alike."""
    min_size: Count = 10
    """Examples that every client has at least."""

    def split(self, labels: Indices, clients: int, rng: Rng) -> list[Indices]:
        shares: list[list[Indices]] = [[] for _ in range(clients)]
        for label in range(int(labels.max()) + 1):
            own = rng.permutation(np.flatnonzero(labels == label))
            for share, part in zip(shares, _divide(own, clients, self.alpha, rng), strict=True):
                share.append(part)
        return _top_up([np.concatenate(share) for share in shares], self.min_size, rng)


@dataclass(kw_only=True, frozen=True)
class Classes(Partition):
    """Every client has examples of `classes` labels; each label is dealt out evenly among those that have it."""

    classes: Count = 2
    """Labels a client."""

    def split(self, labels: Indices, clients: int, rng: Rng) -> list[Indices]:
        total = int(labels.max()) + 1
        if self.classes > total:
            raise ConfigError(f"{self.classes} classes a client, but the data has {total}", key="classes")
        owners: list[list[int]] = [[] for _ in range(total)]
        for client in range(clients):  # the labels that the fewest have so far, ties broken at random
            load = np.array([len(own) for own in owners]) + rng.random(total)
            for label in np.argsort(load)[: self.classes]:
                owners[int(label)].append(client)
        shares: list[list[Indices]] = [[] for _ in range(clients)]
        for label, own in enumerate(owners):
            examples = rng.permutation(np.flatnonzero(labels == label))
            for client, part in zip(own, np.array_split(examples, len(own)) if own else [], strict=True):
                shares[client].append(part)
        return [np.concatenate(share) for share in shares]


@dataclass(kw_only=True, frozen=True)
class Quantity(Partition):
    """The same mix of labels for all, but unequal amounts: sizes in proportions drawn from Dir(alpha)."""

    alpha: Positive = 0.5
    """Small: very unequal amounts; large: all alike."""
    min_size: Count = 10
    """Examples that every client has at least."""

    def split(self, labels: Indices, clients: int, rng: Rng) -> list[Indices]:
        return _top_up(_divide(rng.permutation(len(labels)), clients, self.alpha, rng), self.min_size, rng)


@dataclass(kw_only=True, frozen=True)
class ByOwner(Partition):
    """Every client has the examples of one owner, as the data itself says; for data that says so.

    All owners are clients, in rising order, or as many as `data.clients` asks for, drawn with the seed.  The test data
    stays that of all owners.
    """

    def split(self, labels: Indices, clients: int, rng: Rng) -> list[Indices]:
        """`labels` are the owners of the examples here: this law looks at nothing else."""
        order = np.argsort(labels, kind="stable")
        owners, starts = np.unique(labels[order], return_index=True)
        if clients > len(owners):
            raise ConfigError(f"the data has {len(owners)} owners, too few for {clients} clients", key="name")
        parts = np.split(order, starts[1:])
        return [parts[i] for i in np.sort(rng.permutation(len(owners))[:clients])]


def _divide(examples: Indices, clients: int, alpha: float, rng: Rng) -> list[Indices]:
    """Cut in proportions drawn from Dir(alpha).

    The cuts are rounded, not floored: flooring would give the last client all that is left over.
    """
    shares = rng.dirichlet(np.full(clients, alpha))
    return np.split(examples, np.rint(np.cumsum(shares)[:-1] * len(examples)).astype(np.int64))


def _top_up(parts: list[Indices], min_size: int, rng: Rng) -> list[Indices]:
    """Move random examples from the largest clients to those that have fewer than min_size."""
    total = sum(map(len, parts))
    if min_size * len(parts) > total:
        raise ConfigError(f"{min_size} for {len(parts)} clients needs more than the {total} examples", key="min_size")
    sizes = np.array([len(part) for part in parts])
    for needy in np.flatnonzero(sizes < min_size):
        while sizes[needy] < min_size:
            rich = int(np.argmax(sizes))
            moved = min(min_size - sizes[needy], sizes[rich] - min_size)
            taken = rng.permutation(len(parts[rich]))[:moved]
            parts[needy] = np.concatenate([parts[needy], parts[rich][taken]])
            parts[rich] = np.delete(parts[rich], taken)
            sizes[needy] += moved
            sizes[rich] -= moved
    return parts
