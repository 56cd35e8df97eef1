"""The pool of idle clients."""

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

BATCH = 256  # random numbers that are drawn at once
MIN_MISSES = 32  # random picks of unavailable clients in a row before the pool scans all idle clients …
MISS_SHARE = 64  # … or the number of idle clients over this, if larger: a miss costs little next to a scan


class Pool:
    """The idle clients in some order; drawing one uniformly, taking it and releasing it are O(1).

    Nothing is stored for clients that were never moved. The columns hold the difference between the current and the
    initial order. They are zero at first, and the system allocates a page only when something else is written to it.
    Entries of busy clients, and entries behind the last idle client, have no meaning.

    Args:
        clients: Number of clients.
        seed: Seed of the run.
    """

    def __init__(self, clients: int, seed: int) -> None:
        self.clients = clients
        self.order = _column(clients)  # the client at each position, minus the position
        self.place = _column(clients)  # the position of each idle client, minus its number
        self.trips = _column(clients)  # number of jobs that each client has received
        self.idle = clients
        self.draws = 0
        self._key = key(seed, "draw")
        self._numbers: list[float] = []  # random numbers for the next draws, in reverse order

    def __len__(self) -> int:
        return self.clients

    @property
    def busy(self) -> int:
        """Number of clients that are not idle."""
        return self.clients - self.idle

    def draw(self, count: int, awake: Callable[[int], bool] | None, weights: Sequence[float] = ()) -> list[int]:
        """Draw up to `count` idle, available clients without replacement and mark them busy.

        Args:
            count: Number of clients to draw.
            awake: Whether a client is available; all are if None.
            weights: Weight of each client for sequential weighted draws; uniform if empty.
        """
        if awake is None and not weights:
            return [self._take(int(self._uniform() * self.idle)) for _ in range(min(count, self.idle))]
        drawn: list[int] = []
        misses = 0  # unavailable picks in a row
        max_misses = max(MIN_MISSES, self.idle // MISS_SHARE)
        while not weights and len(drawn) < count and self.idle and misses < max_misses:
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
        """Mark an idle client busy and return it."""
        return self._take(self.place[client] + client)

    def _take(self, place: int) -> int:
        """Mark the client at a position busy; the last idle client moves there."""
        order = self.order
        self.idle = last = self.idle - 1
        client, moved = order[place] + place, order[last] + last
        order[place], self.place[moved] = moved - place, place - moved
        self.trips[client] += 1
        return client

    def release(self, client: int) -> None:
        """Mark a busy client idle."""
        idle = self.idle
        self.order[idle], self.place[client] = client - idle, idle - client
        self.idle = idle + 1

    def idles(self, client: int) -> bool:
        """Return whether a client is idle."""
        place = self.place[client] + client
        return place < self.idle and self.order[place] + place == client

    def _choose(self, candidates: list[int], weights: Sequence[float]) -> int | None:
        """Remove a random candidate and return it, or None if there is none."""
        shares = list(itertools.accumulate(weights[client] for client in candidates)) if weights else []
        if not candidates or (weights and shares[-1] <= 0.0):
            return None
        u = self._uniform()
        place = bisect.bisect_right(shares, u * shares[-1]) if weights else int(u * len(candidates))
        candidates[place], candidates[-1] = candidates[-1], candidates[place]
        return candidates.pop()

    def _uniform(self) -> float:
        if not self._numbers:
            self._numbers = uniforms(self._key + self.draws + 1, BATCH)[::-1]
        self.draws += 1
        return self._numbers.pop()

    def state_dict(self) -> dict[str, Any]:
        """Return the nonzero, meaningful entries of the columns."""
        order, trips = _filled(self.order[: self.idle]), _filled(self.trips)
        return {"idle": self.idle, "draws": self.draws, "order": order, "trips": trips}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.idle, self.draws, self._numbers = state["idle"], state["draws"], []
        for name in ("order", "trips", "place"):
            setattr(self, name, _column(self.clients))
        for name in ("order", "trips"):
            places, values = (column.cpu().numpy() for column in state[name])
            np.asarray(getattr(self, name))[places] = values
            if name == "order":
                np.asarray(self.place)[places + values] = -values


def _column(clients: int) -> memoryview[int]:
    """Return a column with one zero per client."""
    return memoryview(mmap.mmap(-1, max(1, 4 * clients), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)).cast("i")


def _filled(column: memoryview[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the positions of nonzero entries, and the entries."""
    values: NDArray[np.int32] = np.asarray(column)
    places = np.flatnonzero(values).astype(np.int32)
    return torch.from_numpy(places), torch.from_numpy(values[places])
