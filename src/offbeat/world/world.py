"""The outside as one object."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from offbeat.errors import ConfigError
from offbeat.messages import Job
from offbeat.options import Bound, Options, Positive
from offbeat.seeds import key, uniform
from offbeat.world.availability import Always, Availability
from offbeat.world.delays import Delay, HalfNormal, Trip


@dataclass(kw_only=True, frozen=True)
class World(Options):
    """Delays, losses and availability.  Its answers depend on the seed, the client and the job alone."""

    delay: Delay = field(default_factory=HalfNormal)
    """How long a trip takes."""
    availability: Availability = field(default_factory=Always)
    """Who can be given a job."""
    loss: Annotated[float, Bound(low=0, high=1, open="high")] = 0.0
    """Probability that a trip never comes back."""
    trip_timeout: Positive | None = None
    """Seconds after which the server gives a trip up and the client is free again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss and self.trip_timeout is None:
            raise ConfigError(f"needed with loss = {self.loss:g}: a lost client must come free", key="trip_timeout")

    def trip(self, seed: int, job: Job, bytes_down: int, bytes_up: int) -> tuple[float, bool]:
        """Seconds until the job ends and whether its update arrives; if not, the server gives up at that moment."""
        end = math.inf
        if not (self.loss and uniform(key(job.seed, "loss")) < self.loss):
            client_key, trip_key = key(seed, "device", job.client), key(job.seed, "delay")
            end = self.delay.seconds(Trip(job.client, client_key, trip_key, job.steps, bytes_down, bytes_up))
        if self.trip_timeout is not None and end > self.trip_timeout:
            return self.trip_timeout, False
        return end, True

    def awake(self, seed: int, client: int, now: float) -> bool:
        return self.availability.awake(client, key(seed, "device", client), now)
