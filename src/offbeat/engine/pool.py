"""Who is idle."""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch

from offbeat.seeds import key, uniform

PATIENCE = 32  # random picks before all idle clients are looked through for one that is awake


class Pool:
    """All clients, idle ones first: drawing one uniformly, taking it and giving it back are O(1)."""

    def __init__(self, clients: int, seed: int) -> None:
        self.order = array("q", range(clients))
        self.place = array("q", range(clients))
        self.trips = array("q", bytes(8 * clients))  # jobs ever given to each client
        self.idle = clients
        self.draws = 0
        self._key = key(seed, "draw")

    def __len__(self) -> int:
        return len(self.order)

    @property
    def busy(self) -> int:
        return len(self.order) - self.idle

    def draw(self, count: int, awake: Callable[[int], bool], weights: Sequence[float] = ()) -> list[int]:
        """Up to `count` idle clients that are awake, without replacement; they are busy from now on.

        Uniformly, or one after the other with probabilities in proportion to their weights.
        """
        drawn: list[int] = []
        while len(drawn) < count and (client := self._pick(awake, weights)) is not None:
            self.take(client)
            drawn.append(client)
        return drawn

    def take(self, client: int) -> None:
        self._swap(client, self.idle - 1)
        self.idle -= 1
        self.trips[client] += 1

    def release(self, client: int) -> None:
        self._swap(client, self.idle)
        self.idle += 1

    def _pick(self, awake: Callable[[int], bool], weights: Sequence[float]) -> int | None:
        for _ in range(PATIENCE if self.idle and not weights else 0):
            client = self.order[int(self._uniform() * self.idle)]
            if awake(client):
                return client
        candidates = [client for client in self.order[: self.idle] if awake(client)]
        if weights:
            shares = list(itertools.accumulate(weights[client] for client in candidates))
            if not shares or shares[-1] <= 0.0:
                return None
            return candidates[bisect.bisect_right(shares, self._uniform() * shares[-1])]
        return candidates[int(self._uniform() * len(candidates))] if candidates else None

    def _uniform(self) -> float:
        self.draws += 1
        return uniform(self._key + self.draws)

    def _swap(self, client: int, place: int) -> None:
        other, old = self.order[place], self.place[client]
        self.order[old], self.order[place] = other, client
        self.place[other], self.place[client] = old, place

    def state_dict(self) -> dict[str, Any]:
        columns = {name: torch.tensor(getattr(self, name)) for name in ("order", "trips")}
        return {"idle": self.idle, "draws": self.draws, **columns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.idle, self.draws = state["idle"], state["draws"]
        self.order = array("q", state["order"].numpy().tobytes())
        self.trips = array("q", state["trips"].numpy().tobytes())
        for place, client in enumerate(self.order):
            self.place[client] = place
