"""Partitions of a dataset among clients. Each example belongs to at most one client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import ConfigError
from offbeat.options import Options, Positive, PositiveInt

Indices = NDArray[np.int64]
Rng = np.random.Generator


class Partition(Options, ABC):
    """Interface for partitions."""

    needs_labels: ClassVar[bool] = True
    """Whether the partition depends on class labels; if not, the labels that it receives may be meaningless."""

    @abstractmethod
    def split(self, labels: Indices, clients: int, rng: Rng) -> list[Indices]:
        """Partition the examples among the clients.

        Args:
            labels: The label of each example.
            clients: Number of clients.
            rng: The random stream of the partition.

        Returns:
            One array of example indices per client.
        """


@dataclass(kw_only=True, frozen=True)
class IID(Partition):
    """A shuffled, even split."""

    needs_labels: ClassVar[bool] = False

    def split(self, labels: Indices, clients: int, rng: Rng) -> list[Indices]:
        """Partition the examples among the clients."""
        return np.array_split(rng.permutation(len(labels)), clients)


@dataclass(kw_only=True, frozen=True)
class Dirichlet(Partition):
    """Label skew drawn from Dir(alpha), for each label or for each client.

    By label, each label is split among the clients in drawn proportions, so that sizes differ. Clients with fewer than
    `min_size` examples receive random ones from the largest clients; redrawing until every client has enough, as is
    common, would never end for small alpha and many clients.

    By client, all clients have the same number of examples, with labels in the client's own drawn proportions (Hsu et
    al., *Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification*, 2019). When a
    label is used up, the clients that come later draw from the remaining ones.
    """

    alpha: Positive = 0.3
    """Concentration: small values give each client few labels, large values make all clients alike."""
    by: Literal["label", "client"] = "label"
    """Whether proportions are drawn for each label over the clients, or for each client over the labels."""
    min_size: PositiveInt = 10
    """Minimum number of examples per client."""

    def split(self, labels: Indices, clients: int, rng: Rng) -> list[Indices]:
        """Partition the examples among the clients."""
        if self.by == "client":
            return self._equal_sizes(labels, clients, rng)
        shares: list[list[Indices]] = [[] for _ in range(clients)]
        for label in range(int(labels.max()) + 1):
            own = rng.permutation(np.flatnonzero(labels == label))
            for share, part in zip(shares, _divide(own, clients, self.alpha, rng), strict=True):
                share.append(part)
        return _top_up([np.concatenate(share) for share in shares], self.min_size, rng)

    def _equal_sizes(self, labels: Indices, clients: int, rng: Rng) -> list[Indices]:
        size = len(labels) // clients
        if size < self.min_size:
            raise ConfigError(
                f"{clients} clients of equal size have {size} of the {len(labels)} examples each, fewer than min_size",
                key="min_size",
            )
        pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(int(labels.max()) + 1)]
        left = np.array([len(pool) for pool in pools])
        parts: list[Indices] = [np.zeros(0, dtype=np.int64)] * clients
        for client in rng.permutation(clients):
            wanted = _draw_labels(rng.dirichlet(np.full(len(pools), self.alpha)), left, size, rng)
            parts[client] = np.concatenate(
                [pool[rest - n : rest] for pool, rest, n in zip(pools, left, wanted, strict=True)]
            )
            left = left - wanted
        return parts


def _draw_labels(proportions: NDArray[np.float64], left: Indices, size: int, rng: Rng) -> Indices:
    """Return how many examples of each label to take: `size` draws, none of a label that is used up."""
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        weights = np.where(taken < left, proportions, 0.0)
        if not weights.sum():  # Dir(alpha) gave nothing to the labels that are left
            weights = np.maximum(left - taken, 0).astype(float)
        taken = np.minimum(left, taken + rng.multinomial(missing, weights / weights.sum()))
    return taken


@dataclass(kw_only=True, frozen=True)
class LabelShards(Partition):
    """Each client has `classes` labels; each label is split evenly among the clients that have it."""

    classes: PositiveInt = 2
    """Labels per client."""

    def split(self, labels: Indices, clients: int, rng: Rng) -> list[Indices]:
        """Partition the examples among the clients."""
        total = int(labels.max()) + 1
        if self.classes > total:
            raise ConfigError(f"{self.classes} classes per client, but the data has only {total}", key="classes")
        owners: list[list[int]] = [[] for _ in range(total)]
        for client in range(clients):  # assign the least used labels, breaking ties at random
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
class QuantitySkew(Partition):
    """Quantity skew: identically distributed parts whose sizes are in proportions drawn from Dir(alpha)."""

    alpha: Positive = 0.5
    """Concentration: small values give very unequal sizes, large values nearly equal ones."""
    min_size: PositiveInt = 10
    """Minimum number of examples per client."""

    def split(self, labels: Indices, clients: int, rng: Rng) -> list[Indices]:
        """Partition the examples among the clients."""
        return _top_up(_divide(rng.permutation(len(labels)), clients, self.alpha, rng), self.min_size, rng)


@dataclass(kw_only=True, frozen=True)
class Natural(Partition):
    """The natural partition: one client per owner, for datasets that record the owner of each example.

    By default every owner is a client, in ascending order. If `data.clients` is smaller, that many owners are drawn at
    random. The test data always covers all owners.
    """

    def split(self, labels: Indices, clients: int, rng: Rng) -> list[Indices]:
        """Partition by owner: `labels` holds the owners of the examples, not their classes."""
        order = np.argsort(labels, kind="stable")
        owners, starts = np.unique(labels[order], return_index=True)
        if clients > len(owners):
            raise ConfigError(
                f"the data has {len(owners)} owners, too few for {clients} clients; reduce data.clients", key="name"
            )
        parts = np.split(order, starts[1:])
        return [parts[i] for i in np.sort(rng.permutation(len(owners))[:clients])]


def _divide(examples: Indices, clients: int, alpha: float, rng: Rng) -> list[Indices]:
    """Split the examples in proportions drawn from Dir(alpha).

    The boundaries are rounded. Flooring would give the whole remainder to the last client.
    """
    shares = rng.dirichlet(np.full(clients, alpha))
    return np.split(examples, np.rint(np.cumsum(shares)[:-1] * len(examples)).astype(np.int64))


def _top_up(parts: list[Indices], min_size: int, rng: Rng) -> list[Indices]:
    """Move random examples from the largest clients to those with fewer than min_size."""
    total = sum(map(len, parts))
    if min_size * len(parts) > total:
        raise ConfigError(
            f"{min_size} examples for each of {len(parts)} clients are more than the {total} available", key="min_size"
        )
    sizes = np.array([len(part) for part in parts])
    for small in np.flatnonzero(sizes < min_size):
        while sizes[small] < min_size:
            large = int(np.argmax(sizes))
            moved = min(min_size - sizes[small], sizes[large] - min_size)
            chosen = rng.permutation(len(parts[large]))[:moved]
            parts[small] = np.concatenate([parts[small], parts[large][chosen]])
            parts[large] = np.delete(parts[large], chosen)
            sizes[small] += moved
            sizes[large] -= moved
    return parts
