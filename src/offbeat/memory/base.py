"""What CA²FL, MIFA and their kin need: the latest update of every client, and the mean of them all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from offbeat.options import Options


@dataclass(kw_only=True)
class Memory(Options, ABC):
    """h_i for i = 1..N, zero until the first `store(i, …)`, and h = (1/N) Σ_i h_i.

    The mean follows every store in O(d); nothing is ever summed over the clients, and nothing is kept for a client
    that was never seen.
    """

    def start(self, like: Tensor, clients: int) -> None:
        """Forget everything; rows will have the shape, type and device of `like`."""
        self.clients = clients
        self.mean = like.new_zeros(like.shape)
        self.rows: dict[int, Any] = {}

    @abstractmethod
    def __getitem__(self, client: int) -> Tensor:
        """h_i as it is stored.  Not to be changed by the caller."""

    @abstractmethod
    def store(self, client: int, value: Tensor, key: int) -> None:
        """h_i ← value; `key` seeds whatever is random about storing it."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held for all clients' entries, the mean aside."""

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.rows = state["mean"], state["rows"]
