"""The scheduler of FedLuck: step at fixed intervals."""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.messages import Job
from offbeat.options import Positive
from offbeat.scheduling.base import LimitedConcurrency


@dataclass(kw_only=True)
class Periodic(LimitedConcurrency):
    """Asynchronous, as in FedLuck: step every `period` seconds with the updates that have arrived, then replace them.

    Without any arrivals x is unchanged, but the version advances.
    """

    period: Positive = 1.0
    """T̃: seconds between two steps."""

    @property
    def step_period(self) -> float:
        """Seconds between two steps."""
        return self.period

    def start(self, clients: int) -> None:
        """Start with the first period."""
        super().start(clients)
        self.periods = 1  # periods that have begun

    @property
    def wake_at(self) -> float:
        """End of the current period."""
        return self.periods * self.period

    def freed(self, job: Job, arrived: bool) -> None:
        """Count a client that is idle again."""
        self.buffered += 1

    def due(self, now: float) -> bool:
        """Return whether the current period has ended."""
        return now >= self.wake_at

    def stepped(self) -> None:
        """Open a place for every idle client and start the next period."""
        self.open += self.buffered
        self.buffered = 0
        self.periods += 1
