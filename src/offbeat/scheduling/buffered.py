"""The scheduler of CA²FL: step at every M-th arrival, then select new clients."""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.errors import ConfigError
from offbeat.messages import Job
from offbeat.options import PositiveInt
from offbeat.scheduling.base import LimitedConcurrency


@dataclass(kw_only=True)
class Buffered(LimitedConcurrency):
    """Asynchronous, as in CA²FL: step at every `buffer`-th arrival, then replace the clients that have arrived.

    A job that the server gives up is replaced immediately.
    """

    buffer: PositiveInt = 5
    """M: arrivals per step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buffer > self.concurrency:
            raise ConfigError(
                f"{self.buffer} updates per step cannot come from concurrency = {self.concurrency} clients: "
                f"at most {self.concurrency}",
                key="buffer",
            )

    @property
    def updates(self) -> int:
        """Number of updates per step: the buffer."""
        return self.buffer

    def freed(self, job: Job, arrived: bool) -> None:
        """Count an arrival, or open a place for a job that was given up."""
        self.buffered += arrived
        self.open += not arrived

    def due(self, now: float) -> bool:
        """Return whether the buffer is full."""
        return self.buffered >= self.buffer

    def stepped(self) -> None:
        """Open a place for every client that has arrived."""
        self.open += self.buffered
        self.buffered = 0
