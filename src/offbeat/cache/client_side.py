"""Each client keeps its own entry and sends only how it has changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from offbeat.cache.base import Change, UpdateCache, differences, owned


@dataclass(kw_only=True)
class ClientSide(UpdateCache):
    """The memory-light form of MIFA: the client keeps h_i and sends Δ_i − h_i; the server keeps nothing but the mean.

    The rows here are the clients' own, simulated; the server's rules only ever see a row's change.  The trajectory is
    that of the dense memory, bit for bit.
    """

    readable: ClassVar[bool] = False

    def __getitem__(self, client: int) -> Tensor:
        raise TypeError("a memory held by the clients cannot be read by the server")

    def difference(self, client: int, value: Tensor) -> Tensor:
        row: Tensor | None = self.rows.get(client)
        return value.clone() if row is None else value - row

    def _exchange(self, client: int, value: Tensor, key: int | None) -> Iterator[Change]:
        yield from differences(value, self.rows.get(client))
        if key is not None:
            self.rows[client] = owned(value)

    @property
    def nbytes(self) -> int:
        return 0

    @property
    def client_bytes(self) -> int:
        """What all clients together keep."""
        return sum(torch.numel(row) * row.element_size() for row in self.rows.values())
