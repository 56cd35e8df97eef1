"""The scheduler of Anarchic Federated Learning: clients join at will."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from offbeat.messages import Job
from offbeat.options import Positive, PositiveInt
from offbeat.random import exponential
from offbeat.scheduling.base import Scheduler


@dataclass(kw_only=True)
class Anarchic(Scheduler):
    """Asynchronous, as in Anarchic FL: workers join at will, and the server steps at every `buffer`-th arrival.

    Before each job a worker is idle for an exponentially distributed time. With `probabilities`, the mean of this time
    is inversely proportional to the worker's probability, so that arrivals come from the workers in these proportions
    if the idle times are long compared with the jobs.
    """

    anarchic: ClassVar[bool] = True

    buffer: PositiveInt = 5
    """m: arrivals per step."""
    idle: Positive = 30.0
    """Mean idle time in seconds. The proportions of `probabilities` hold only if it is long compared with a job."""
    probabilities: tuple[Positive, ...] = ()
    """Proportions of the arrivals, one per worker. If empty, they are equal."""

    @property
    def places(self) -> int:
        """Zero: the server does not select clients."""
        return 0

    @property
    def updates(self) -> int:
        """Number of updates per step: the buffer."""
        return self.buffer

    def gap(self, client: int, seed: int) -> float:
        """Return the idle time of a worker before its next job.

        Args:
            client: The worker.
            seed: The random key of the job.
        """
        mean = self.idle
        if self.probabilities:
            mean *= sum(self.probabilities) / (self.clients * self.probabilities[client])
        return mean * exponential(seed)

    def sent(self, count: int, first: int, now: float) -> None:
        """Do nothing: there are no places."""

    def freed(self, job: Job, arrived: bool) -> None:
        """Count an arrival."""
        self.buffered += arrived

    def due(self, now: float) -> bool:
        """Return whether the buffer is full."""
        return self.buffered >= self.buffer

    def stepped(self) -> None:
        """Empty the buffer."""
        self.buffered = 0
