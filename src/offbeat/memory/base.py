"""What CA²FL, MIFA and their kin need: the latest update of every client, and the mean of them all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

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
        self.mean = like.new_zeros(like.shape)
        self.rows: dict[int, Any] = {}

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
        self.mean = self.mean.sub(self[client], alpha=1 / self.clients)
        del self.rows[client]

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held for all clients' entries, the mean aside."""

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.rows = state["mean"], state["rows"]
