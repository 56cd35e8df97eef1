"""What CA²FL, MIFA and their kin need: the latest update of every client, and the mean of them all."""

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
from offbeat.vectors import blocks, empty_hugepages_like, warm_up_malloc

Change = tuple[Tensor, Tensor]


@dataclass(kw_only=True)
class UpdateCache(Options, Stateful, ABC):
    """h_i for i = 1..N, zero until the first `store(i, …)`, and h = (1/N) Σ_i h_i.

    The mean follows every store in O(d); nothing is ever summed over the clients, and nothing is kept for a client
    that was never seen.  What is stored belongs to the memory, which may keep the very tensor: it must not change
    afterwards, as an update's never does.

    A kind of memory is one generator, `_exchange`, that goes through a value and an entry block by block.  Several of
    them advance side by side, so that a block is read, summed and stored while it is in the cache.
    """

    readable: ClassVar[bool] = True
    """Whether the server can read a row, and so forget it."""
    exact: ClassVar[bool] = True
    """Whether a row is exactly what was sent."""

    base_state_names: ClassVar[tuple[str, ...]] = ("total", "rows")

    def start(self, like: Tensor, clients: int) -> None:
        """Forget everything; rows will have the shape, type and device of `like`."""
        self.clients = clients
        self.like = like
        # In double precision: small changes must not vanish beside what has been added up.
        self.total = torch.zeros(like.shape, dtype=torch.float64, device=like.device)
        self.rows: dict[int, Any] = {}
        self._lent: tuple[Tensor, Tensor] | None = None
        warm_up_malloc()

    def use_folder(self, folder: pathlib.Path) -> None:
        """Keep files in a folder, where the user gave no other place."""

    @property
    def mean(self) -> Tensor:
        """h = (1/N) Σ_i h_i, a new tensor."""
        h = empty_hugepages_like(self.like)
        for part, total in zip(self.blocks(h), self.blocks(self.total), strict=True):
            part.copy_(total / self.clients)
        return h

    @abstractmethod
    def __getitem__(self, client: int) -> Tensor:
        """h_i as it is stored.  Not to be changed by the caller."""

    def difference(self, client: int, value: Tensor) -> Tensor:
        """value − h_i, as a new tensor."""
        return value - self[client]

    def __len__(self) -> int:
        """Clients that have an entry."""
        return len(self.rows)

    def store(self, client: int, value: Tensor, key: int) -> None:
        """h_i ← value; `key` seeds whatever is random about storing it."""
        for total, (_, kept) in zip(self.blocks(self.total), self._exchange(client, value, key), strict=True):
            total.add_(kept)

    def replace(self, fresh: Sequence[tuple[int, Tensor]], key: Callable[[int], int]) -> tuple[Tensor, Tensor]:
        """h and Σ (value − h_i) over all (i, value), both as they are now; then h_i ← value for each, in order.

        Both results are lent: they may be changed, and hold until the next call.  `key` gives the key of a place in
        `fresh`.  A client may be there twice: both its differences count, the later value stays.  With an exact
        memory the total changes by the sum itself, so it is touched once however many are replaced.
        """
        h, summed = self._lent = self._lent or (empty_hugepages_like(self.like), empty_hugepages_like(self.like))
        last = {client: place for place, (client, _) in enumerate(fresh)}
        stays = self._exchanges([(client, fresh[place][1], key(place)) for client, place in last.items()])
        goes = [self._exchange(i, value, None) for place, (i, value) in enumerate(fresh) if last[i] != place]
        for total, mean, change in zip(*map(self.blocks, (self.total, h, summed)), strict=True):
            mean.copy_(total / self.clients)
            change.zero_()
            for each in stays:
                sent, kept = next(each)
                change.add_(sent)
                if kept is not sent:
                    total.add_(kept)
            if self.exact:
                total.add_(change)
            for each in goes:
                change.add_(next(each)[0])
        for each in stays:
            next(each, None)
        return h, summed

    def blocks(self, v: Tensor) -> Sequence[Tensor]:
        """A vector in the blocks in which entries are exchanged."""
        return blocks(v)

    def _exchanges(self, fresh: Sequence[tuple[int, Tensor, int]]) -> list[Iterator[Change]]:
        """Exchanges that together store everything; some may give the sums of several."""
        return [self._exchange(*each) for each in fresh]

    @abstractmethod
    def _exchange(self, client: int, value: Tensor, key: int | None) -> Iterator[Change]:
        """For each block value − h_i, and how h_i changes: the very same tensor where the memory is exact.

        Behind the last block h_i is stored; with no key nothing is.
        """

    def forget(self, client: int) -> None:
        """h_i ← 0, and i counts as never seen."""
        self.total.sub_(self[client])
        del self.rows[client]

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held for all clients' entries, the mean aside."""


def owned(value: Tensor) -> Tensor:
    """The value itself, or a copy where it is a part of something larger that it would keep alive."""
    return value if value.untyped_storage().nbytes() == value.nbytes else value.clone()


def differences(value: Tensor, row: Tensor | None) -> Iterator[Change]:
    """value − row block by block, for memories that keep exactly what was sent."""
    for part, old in zip(blocks(value), repeat(None) if row is None else blocks(row), strict=row is not None):
        change = part if old is None else part - old
        yield change, change
