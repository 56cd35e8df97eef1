"""Cache entries in memory, one vector of floats per client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from offbeat.cache.base import Change, UpdateCache, differences, owned


@dataclass(kw_only=True)
class Dense(UpdateCache):
    """Exact entries in memory: 4·d bytes for each client that has reported."""

    def __getitem__(self, client: int) -> Tensor:
        row: Tensor | None = self.rows.get(client)
        return torch.zeros_like(self.like) if row is None else row

    def _exchange(self, client: int, value: Tensor, key: int | None) -> Iterator[Change]:
        yield from differences(value, self.rows.get(client))
        if key is not None:
            self.rows[client] = owned(value)

    @property
    def nbytes(self) -> int:
        """Bytes of memory of all entries."""
        return sum(row.nbytes for row in self.rows.values())
