"""Delays of a run as the convergence theories count them: per step, of cached updates, and of absent clients.

    t        the version that a step starts from; S_t the clients whose updates it aggregates
    τ_t^i    staleness of the update of client i ∈ S_t: t minus the version that the client pulled
    ζ_t^j    age of the cached update of client j ∉ S_t: t minus the version that it was computed from
    τ(t,i)   inactive rounds of client i: t minus the last step that aggregated its update, 0 for i ∈ S_t

τ_t^i and ζ_t^j are those of CA²FL (Wang et al., assumptions B.3 and B.4), τ(t,i) is that of MIFA (Gu et al., appendix
B). A client counts from its first cached update on. Sums change for the clients of S_t only, so that the cost of a step
does not depend on the number of clients.
"""

from __future__ import annotations

from typing import Any

import torch

from offbeat.cache import UpdateCache
from offbeat.server.events import Arrival, Outcome

Entry = tuple[int, int]
"""Of a cached update: the version that the client pulled, and the step that aggregated it."""


class Delays:
    """Sums and maxima of the delays of a run so far."""

    def __init__(self) -> None:
        self.version = 0
        self.steps = 0  # those with arrivals
        self.mean_sum = 0.0  # of the steps' mean staleness
        self.max_sum = 0  # of the steps' largest staleness
        self.fresh: dict[int, int] = {}  # the version that each client of S_t pulled
        self.staleness_sum = self.staleness_max = self.arrivals = 0  # since the last step
        self.entries: dict[int, Entry] = {}  # by client
        self.longest: dict[int, int] = {}  # each client's most inactive rounds, up to its last update
        self.pulled_sum = self.active_sum = 0  # of the entries' versions and steps
        self.age_sum = self.ages = self.age_max = 0
        self.inactive_sum = self.inactives = 0

    def count(self, outcome: Outcome, cache: UpdateCache | None) -> None:
        """Count one turn of the server loop.

        Args:
            outcome: The turn.
            cache: The algorithm's cache after the turn, if it has one.
        """
        if outcome.aggregated and isinstance(outcome.event, Arrival):
            job = outcome.event.job
            self.fresh[job.client] = job.version
            self.arrivals += 1
            self.staleness_sum += outcome.staleness
            self.staleness_max = max(self.staleness_max, outcome.staleness)
        if outcome.stepped:
            if self.arrivals:
                self.steps += 1
                self.mean_sum += self.staleness_sum / self.arrivals
                self.max_sum += self.staleness_max
            if cache is not None:
                self._step(cache)
            self.version += 1
            self.fresh = {}
            self.staleness_sum = self.staleness_max = self.arrivals = 0

    def _step(self, cache: UpdateCache) -> None:
        """Count the ages at a step; the cache already has the entries of S_t, and none that the algorithm dropped."""
        t = self.version
        if len(cache) < len(self.entries) + sum(client not in self.entries for client in self.fresh):
            for client in [client for client in self.entries if client not in cache.rows]:
                self._remove(client)
        for client in self.fresh.keys() & self.entries.keys():
            self._remove(client)
        self.age_sum += len(self.entries) * t - self.pulled_sum
        self.ages += len(self.entries)
        self.inactive_sum += len(self.entries) * t - self.active_sum
        self.inactives += len(self.entries)
        for client, pulled in self.fresh.items():
            if client in cache.rows:
                self.entries[client] = pulled, t
                self.longest.setdefault(client, 0)
                self.pulled_sum += pulled
                self.active_sum += t
                self.inactives += 1

    def _remove(self, client: int) -> None:
        """Remove an entry that was last used one step ago."""
        pulled, active = entry = self.entries.pop(client)
        self.pulled_sum -= pulled
        self.active_sum -= active
        self.age_max = max(self.age_max, self._age(entry))
        self.longest[client] = max(self.longest[client], self._inactive(entry))

    def _age(self, entry: Entry) -> int:
        """Return the largest age of an entry up to the last step, 0 if its client took part in that."""
        pulled, _ = entry
        return self.version - 1 - pulled if self._inactive(entry) else 0

    def _inactive(self, entry: Entry) -> int:
        """Return for how many rounds the client of an entry was inactive at the last step."""
        _, active = entry
        return self.version - 1 - active

    def summary(self, cached: bool) -> dict[str, float | None]:
        """Return the figures for the run's summary.

        Args:
            cached: Whether the algorithm has a cache; without one, ages and inactive rounds are None.
        """
        steps = max(self.steps, 1)
        found: dict[str, float | None] = {
            "staleness_step_mean": self.mean_sum / steps,
            "staleness_step_max": self.max_sum / steps,
        }
        if not cached:
            return found | dict.fromkeys(CACHED)
        now = {client: self._inactive(entry) for client, entry in self.entries.items()}
        longest = [max(rounds, now.get(client, 0)) for client, rounds in self.longest.items()]
        values = (
            self.age_sum / max(self.ages, 1),
            max([self.age_max, *map(self._age, self.entries.values())]),
            self.inactive_sum / max(self.inactives, 1),
            max(longest, default=0),
            sum(rounds**2 for rounds in longest) / max(len(longest), 1),
        )
        return found | dict(zip(CACHED, values, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Return the sums, and what is known of each client as the rows of a matrix."""
        rows = [(client, longest, *self.entries.get(client, (-1, -1))) for client, longest in self.longest.items()]
        table = torch.tensor(rows, dtype=torch.int64).reshape(-1, 4)
        return vars(self) | {"entries": {}, "longest": {}, "table": table}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        rows = state.pop("table").tolist()
        vars(self).update(state)
        self.longest = {client: longest for client, longest, _, _ in rows}
        self.entries = {client: (pulled, active) for client, _, pulled, active in rows if active >= 0}


CACHED = ("cache_age_mean", "cache_age_max", "inactive_mean", "inactive_max", "inactive_max_square")
