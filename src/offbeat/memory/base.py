"""What CA²FL, MIFA and their kin need: the latest update of every client, and the mean of them all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from offbeat.options import Options


@dataclass(kw_only=True)
class Memory(Options, ABC):
    """h_i for i = 1..N, zero until the first `store(i, …)`, and h = (1/N) Σ_i h_i.

    The mean follows every store in O(d); nothing is ever summed over the clients, and nothing is kept for a client
    that was never seen.
    """

    readable: ClassVar[bool] = True
    """Whether the server can read a row, and so forget it."""

    def start(self, like: Tensor, clients: int) -> None:
        """Forget everything; rows will have the shape, type and device of `like`."""
        self.clients = clients
        self.like = like
        # In double precision: small changes must not vanish beside what has been added up.
        self.total = torch.zeros(like.shape, dtype=torch.float64, device=like.device)
        self.rows: dict[int, Any] = {}

    @property
    def mean(self) -> Tensor:
        """h = (1/N) Σ_i h_i, a new tensor."""
        return (self.total / self.clients).to(self.like.dtype)

    @abstractmethod
    def __getitem__(self, client: int) -> Tensor:
        """h_i as it is stored.  Not to be changed by the caller."""

    def difference(self, client: int, value: Tensor) -> Tensor:
        """value − h_i, as a new tensor."""
        return value - self[client]

    def __len__(self) -> int:
        """Clients that have an entry."""
        return len(self.rows)

    @abstractmethod
    def store(self, client: int, value: Tensor, key: int) -> None:
        """h_i ← value; `key` seeds whatever is random about storing it."""

    def forget(self, client: int) -> None:
        """h_i ← 0, and i counts as never seen."""
        self.total.sub_(self[client])
        del self.rows[client]

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held for all clients' entries, the mean aside."""

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total, self.rows = state["total"], state["rows"]
