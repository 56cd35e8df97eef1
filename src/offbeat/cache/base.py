"""Base class of the update caches: the latest update of every client and the mean of all of them."""

from __future__ import annotations

import pathlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, ClassVar

import torch
from torch import Tensor

from offbeat.options import Options
from offbeat.stateful import Stateful
from offbeat.vectors import Layout, blocks, empty_hugepages_like, warm_up_malloc

Change = tuple[Tensor, Tensor]


@dataclass(kw_only=True)
class UpdateCache(Options, Stateful, ABC):
    """Interface for update caches: h_i for i = 1..N, zero until the first `store(i, …)`, and h = (1/N) Σ_i h_i.

    Each store updates the mean in O(d). No operation sums over all clients, and a client without an entry takes no
    memory. The cache may keep a reference to a stored tensor, so the caller must not modify it afterwards.

    A subclass implements one generator, `_exchange`, which passes through a value and an entry block by block. Several
    generators advance in step, so that a block is read, summed and stored while it is in the CPU cache.
    """

    readable: ClassVar[bool] = True
    """Whether the server can read an entry, which is necessary to remove it."""
    exact: ClassVar[bool] = True
    """Whether an entry is exactly the stored value."""

    base_state_names: ClassVar[tuple[str, ...]] = ("total", "rows")

    def start(self, like: Tensor, clients: int) -> None:
        """Discard all entries and prepare for a new run.

        Args:
            like: A vector with the shape, dtype and device of the entries.
            clients: The number of clients N.
        """
        self.clients = clients
        self.like = like
        # Double precision, so that small changes are not lost in a large sum.
        self.total = torch.zeros(like.shape, dtype=torch.float64, device=like.device)
        self.rows: dict[int, Any] = {}
        self._results: tuple[Tensor, Tensor] | None = None  # buffers that `replace` reuses
        warm_up_malloc()

    def use_folder(self, folder: pathlib.Path) -> None:
        """Store files in a folder, unless the user chose another one."""

    def use_layout(self, layout: Layout) -> None:
        """Learn the tensors of which the entries consist, before `start`."""

    @property
    def mean(self) -> Tensor:
        """Mean h = (1/N) Σ_i h_i of all entries, as a new tensor."""
        h = empty_hugepages_like(self.like)
        for part, total in zip(self.blocks(h), self.blocks(self.total), strict=True):
            part.copy_(total / self.clients)
        return h

    @abstractmethod
    def __getitem__(self, client: int) -> Tensor:
        """Return h_i. The caller must not modify it."""

    def difference(self, client: int, value: Tensor) -> Tensor:
        """Return value − h_i as a new tensor."""
        return value - self[client]

    def __len__(self) -> int:
        """Return the number of clients that have an entry."""
        return len(self.rows)

    def store(self, client: int, value: Tensor, key: int) -> None:
        """Set h_i ← value.

        Args:
            client: The client i.
            value: The new entry.
            key: The random key of a stochastic cache.
        """
        for total, (_, stored) in zip(self.blocks(self.total), self._exchange(client, value, key), strict=True):
            total.add_(stored)

    def replace(self, fresh: Sequence[tuple[int, Tensor]], key: Callable[[int], int]) -> tuple[Tensor, Tensor]:
        """Compute h and Σ (value − h_i), then set h_i ← value for all given values.

        A client may occur twice: both differences count, and the later value is stored. In an exact cache the total
        changes by the sum itself, so it is updated once for any number of values.

        Args:
            fresh: Pairs (i, value), in the order of their arrival.
            key: Returns the random key for a position in `fresh`.

        Returns:
            h and Σ (value − h_i), both from before the replacement. The caller may modify them; they are valid until
            the next call.
        """
        if self._results is None:
            self._results = empty_hugepages_like(self.like), empty_hugepages_like(self.like)
        h, summed = self._results
        last = {client: place for place, (client, _) in enumerate(fresh)}
        stored = self._exchanges([(client, fresh[place][1], key(place)) for client, place in last.items()])
        superseded = [self._exchange(i, value, None) for place, (i, value) in enumerate(fresh) if last[i] != place]
        for total, mean, change in zip(*map(self.blocks, (self.total, h, summed)), strict=True):
            mean.copy_(total / self.clients)
            change.zero_()
            for exchange in stored:
                difference, entry_change = next(exchange)
                change.add_(difference)
                if entry_change is not difference:
                    total.add_(entry_change)
            if self.exact:
                total.add_(change)
            for exchange in superseded:
                change.add_(next(exchange)[0])
        for exchange in stored:  # run the code after the last block, which stores the entry
            next(exchange, None)
        return h, summed

    def blocks(self, v: Tensor) -> Sequence[Tensor]:
        """Split a vector into the blocks in which entries are exchanged."""
        return blocks(v)

    def _exchanges(self, fresh: Sequence[tuple[int, Tensor, int]]) -> list[Iterator[Change]]:
        """Return generators that store all values. A generator may yield the sums over several clients."""
        return [self._exchange(*entry) for entry in fresh]

    @abstractmethod
    def _exchange(self, client: int, value: Tensor, key: int | None) -> Iterator[Change]:
        """Yield value − h_i and the change of h_i for each block: the same tensor twice if the cache is exact.

        After the last block the value is stored, unless the key is None.
        """

    def forget(self, client: int) -> None:
        """Remove the entry of a client, so that h_i = 0."""
        self.total.sub_(self[client])
        del self.rows[client]

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of memory of all entries, without the mean."""


def owned(value: Tensor) -> Tensor:
    """Return the value, or a copy if it is a view that would keep a larger tensor alive."""
    return value if value.untyped_storage().nbytes() == value.nbytes else value.clone()


def differences(value: Tensor, row: Tensor | None) -> Iterator[Change]:
    """Yield value − row block by block, for exact caches."""
    for part, old in zip(blocks(value), repeat(None) if row is None else blocks(row), strict=row is not None):
        change = part if old is None else part - old
        yield change, change
