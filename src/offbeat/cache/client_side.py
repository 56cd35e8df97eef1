"""Cache entries stored on the clients, which send only the changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from offbeat.cache.base import Change, UpdateCache, differences, owned


@dataclass(kw_only=True)
class ClientSide(UpdateCache):
    """Each client stores its h_i and sends Δ_i − h_i; the server stores only the mean (the memory-efficient MIFA).

    The entries here simulate the clients' storage; the server only sees their changes. The trajectory is bitwise
    identical to that of the dense cache.
    """

    readable: ClassVar[bool] = False

    def __getitem__(self, client: int) -> Tensor:
        raise TypeError("the server cannot read the entries of a client-side cache")

    def difference(self, client: int, value: Tensor) -> Tensor:
        """Return value − h_i, as the client sends it."""
        row: Tensor | None = self.rows.get(client)
        return value.clone() if row is None else value - row

    def _exchange(self, client: int, value: Tensor, key: int | None) -> Iterator[Change]:
        yield from differences(value, self.rows.get(client))
        if key is not None:
            self.rows[client] = owned(value)

    @property
    def nbytes(self) -> int:
        """Zero: the server stores no entries."""
        return 0

    @property
    def client_bytes(self) -> int:
        """Bytes of memory of the entries of all clients together."""
        return sum(torch.numel(row) * row.element_size() for row in self.rows.values())
