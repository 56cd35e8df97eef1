"""Schedulers that replace every idle client immediately: those of FedBuff and FedAsync."""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.messages import Job
from offbeat.options import PositiveInt
from offbeat.scheduling.base import LimitedConcurrency


@dataclass(kw_only=True)
class Continuous(LimitedConcurrency):
    """Asynchronous, as in FedBuff: replace every idle client immediately and step at every `buffer`-th arrival.

    A fast client can contribute twice to the same buffer.
    """

    buffer: PositiveInt = 5
    """M: arrivals per step."""

    @property
    def updates(self) -> int:
        """Number of updates per step: the buffer."""
        return self.buffer

    def freed(self, job: Job, arrived: bool) -> None:
        """Open a place and count the arrival."""
        self.open += 1
        self.buffered += arrived

    def due(self, now: float) -> bool:
        """Return whether the buffer is full."""
        return self.buffered >= self.buffer

    def stepped(self) -> None:
        """Empty the buffer."""
        self.buffered = 0


@dataclass(kw_only=True)
class PerArrival(LimitedConcurrency):
    """Asynchronous, as in FedAsync: step at every arrival and replace every idle client immediately."""

    @property
    def updates(self) -> int:
        """Number of updates per step: one."""
        return 1

    def freed(self, job: Job, arrived: bool) -> None:
        """Open a place and count the arrival."""
        self.open += 1
        self.buffered += arrived

    def due(self, now: float) -> bool:
        """Return whether an update has arrived."""
        return self.buffered > 0

    def stepped(self) -> None:
        """Empty the buffer."""
        self.buffered = 0
