"""Who is idle."""

from __future__ import annotations

import bisect
import itertools
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offbeat.random import key, uniforms

AHEAD = 256  # random numbers that are made at once
PATIENCE = 32  # random picks before all idle clients are looked through for one that is awake, of few clients
SHARE = 64  # of many, their number over this: picking in vain costs little beside looking through all


class Pool:
    """The idle clients in some order: drawing one uniformly, taking it and giving it back are O(1).

    Nothing is stored for clients that were never moved.  The columns hold by how far the order differs from that of
    the numbers, zero at first, in pages that the system provides when something else is written into them.  What they
    hold of busy clients, and behind the last idle one, means nothing.
    """

    def __init__(self, clients: int, seed: int) -> None:
        self.clients = clients
        self.order = _column(clients)  # who stands at a place: the client's number less the place
        self.place = _column(clients)  # where an idle client stands: the place less the client's number
        self.trips = _column(clients)  # jobs ever given to each client
        self.idle = clients
        self.draws = 0
        self._key = key(seed, "draw")
        self._ahead: list[float] = []  # random numbers for the next draws, the last one first

    def __len__(self) -> int:
        return self.clients

    @property
    def busy(self) -> int:
        return self.clients - self.idle

    def draw(self, count: int, awake: Callable[[int], bool] | None, weights: Sequence[float] = ()) -> list[int]:
        """Up to `count` idle clients that are awake, without replacement; they are busy from now on.

        Uniformly, or one after the other with probabilities in proportion to their weights.  Without `awake` everybody
        is.
        """
        if awake is None and not weights:
            return [self._take(int(self._uniform() * self.idle)) for _ in range(min(count, self.idle))]
        drawn: list[int] = []
        misses = 0  # random picks in a row that were asleep
        patience = max(PATIENCE, self.idle // SHARE)
        while not weights and len(drawn) < count and self.idle and misses < patience:
            place = int(self._uniform() * self.idle)
            if awake is None or awake(self.order[place] + place):
                drawn.append(self._take(place))
                misses = 0
            else:
                misses += 1
        if len(drawn) < count:
            idle = map(int.__add__, self.order[: self.idle], itertools.count())
            candidates = [c for c in idle if awake is None or awake(c)]
            while len(drawn) < count and (client := self._choose(candidates, weights)) is not None:
                drawn.append(self.take(client))
        return drawn

    def take(self, client: int) -> int:
        """This client is busy from now on."""
        return self._take(self.place[client] + client)

    def _take(self, place: int) -> int:
        """The same for whoever stands at this place: the last one that is idle takes it."""
        order = self.order
        self.idle = last = self.idle - 1
        client, moved = order[place] + place, order[last] + last
        order[place], self.place[moved] = moved - place, place - moved
        self.trips[client] += 1
        return client

    def release(self, client: int) -> None:
        idle = self.idle
        self.order[idle], self.place[client] = client - idle, idle - client
        self.idle = idle + 1

    def idles(self, client: int) -> bool:
        """Whether nobody has taken this client."""
        place = self.place[client] + client
        return place < self.idle and self.order[place] + place == client

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
        """Of the columns what means something and is not zero."""
        order, trips = _filled(self.order[: self.idle]), _filled(self.trips)
        return {"idle": self.idle, "draws": self.draws, "order": order, "trips": trips}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.idle, self.draws, self._ahead = state["idle"], state["draws"], []
        for name in ("order", "trips", "place"):
            setattr(self, name, _column(self.clients))
        for name in ("order", "trips"):
            places, values = (column.cpu().numpy() for column in state[name])
            np.asarray(getattr(self, name))[places] = values
            if name == "order":
                np.asarray(self.place)[places + values] = -values


def _column(clients: int) -> memoryview[int]:
    """A number for each client, all of them 0."""
    return memoryview(mmap.mmap(-1, max(1, 4 * clients), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)).cast("i")


def _filled(column: memoryview[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Where something stands, and what."""
    values: NDArray[np.int32] = np.asarray(column)
    places = np.flatnonzero(values).astype(np.int32)
    return torch.from_numpy(places), torch.from_numpy(values[places])
