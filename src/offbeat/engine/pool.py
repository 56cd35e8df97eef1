"""Who is idle."""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch

from offbeat.seeds import key, uniforms

AHEAD = 256  # random numbers that are made at once
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
        self._ahead: list[float] = []  # random numbers for the next draws, the last one first

    def __len__(self) -> int:
        return len(self.order)

    @property
    def busy(self) -> int:
        return len(self.order) - self.idle

    def draw(self, count: int, awake: Callable[[int], bool] | None, weights: Sequence[float] = ()) -> list[int]:
        """Up to `count` idle clients that are awake, without replacement; they are busy from now on.

        Uniformly, or one after the other with probabilities in proportion to their weights.  Without `awake` everybody
        is.
        """
        drawn: list[int] = []
        misses = 0  # random picks in a row that were asleep
        while not weights and len(drawn) < count and self.idle and misses < PATIENCE:
            place = int(self._uniform() * self.idle)
            if awake is None or awake(self.order[place]):
                drawn.append(self._take(place))
                misses = 0
            else:
                misses += 1
        if len(drawn) < count:
            candidates = [c for c in self.order[: self.idle] if awake is None or awake(c)]
            while len(drawn) < count and (client := self._choose(candidates, weights)) is not None:
                drawn.append(self.take(client))
        return drawn

    def take(self, client: int) -> int:
        """This client is busy from now on."""
        return self._take(self.place[client])

    def _take(self, place: int) -> int:
        """The same for whoever stands at this place: it goes behind those that stay idle."""
        order, last = self.order, self.idle - 1
        client, other = order[place], order[last]
        order[place], order[last] = other, client
        self.place[other], self.place[client] = place, last
        self.trips[client] += 1
        self.idle = last
        return client

    def release(self, client: int) -> None:
        order, first, place = self.order, self.idle, self.place[client]
        other = order[first]
        order[place], order[first] = other, client
        self.place[other], self.place[client] = place, first
        self.idle = first + 1

    def _choose(self, candidates: list[int], weights: Sequence[float]) -> int | None:
        """Take one out of the candidates."""
        shares = list(itertools.accumulate(weights[client] for client in candidates)) if weights else []
        if not candidates or (weights and shares[-1] <= 0.0):
            return None
        u = self._uniform()
        place = bisect.bisect_right(shares, u * shares[-1]) if weights else int(u * len(candidates))
        candidates[place], candidates[-1] = candidates[-1], candidates[place]
        return candidates.pop()

    def _uniform(self) -> float:
        if not self._ahead:
            self._ahead = uniforms(self._key + self.draws + 1, AHEAD)[::-1]
        self.draws += 1
        return self._ahead.pop()

    def state_dict(self) -> dict[str, Any]:
        columns = {name: torch.tensor(getattr(self, name)) for name in ("order", "trips")}
        return {"idle": self.idle, "draws": self.draws, **columns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.idle, self.draws, self._ahead = state["idle"], state["draws"], []
        self.order = array("q", state["order"].cpu().numpy().tobytes())
        self.trips = array("q", state["trips"].cpu().numpy().tobytes())
        for place, client in enumerate(self.order):
            self.place[client] = place
