"""The outside as one object."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from offbeat.environment.attacks import Attack
from offbeat.environment.availability import Always, Availability
from offbeat.environment.delays import Delay, HalfNormal, Trip
from offbeat.environment.local_work import LocalWork, Requested
from offbeat.errors import ConfigError
from offbeat.messages import Job
from offbeat.options import Interval, Options, Positive
from offbeat.random import fold_in, fold_in_pair, key, uniform, word

_ROOT, _DELAY = key(), word("delay")
SLEEPS = 100_000  # spans after which a client that never wakes up is taken for dead


@dataclass(kw_only=True, frozen=True)
class Environment(Options):
    """Delays, losses, availability and attacks.  Its answers depend on the seed, the client and the job alone."""

    delay: Delay = field(default_factory=HalfNormal)
    """How long a trip takes."""
    availability: Availability = field(default_factory=Always)
    """Who can be given a job."""
    on_leave: Literal["finish", "lost", "late"] = "finish"
    """What becomes of a trip whose client falls asleep: it is finished all the same, lost, or goes on at waking up."""
    local_work: LocalWork = field(default_factory=Requested)
    """How many local steps a client does."""
    loss: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Probability that a trip never comes back."""
    trip_timeout: Positive | None = None
    """Seconds after which the server gives a trip up and the client is free again."""
    attack: Attack | None = None
    """What some clients do instead of what they should."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for reason, needed in ((f"loss = {self.loss:g}", self.loss), ("on_leave = 'lost'", self.on_leave == "lost")):
            if needed and self.trip_timeout is None:
                raise ConfigError(f"needed with {reason}: a lost client must come free", key="trip_timeout")

    def trip(self, seed: int, job: Job, bytes_down: int, bytes_up: int, now: float) -> tuple[float, bool]:
        """When a job sent now ends and whether its update arrives; if not, the server gives up at that moment."""
        limit = math.inf if self.trip_timeout is None else now + self.trip_timeout
        if self.loss and uniform(key(job.seed, "loss")) < self.loss:
            return limit, False
        client = job.client
        client_key = fold_in(_devices(seed), client)
        trip_key = fold_in_pair(_ROOT, job.seed, _DELAY)  # key(job.seed, "delay")
        seconds = self.delay.seconds(Trip(client, client_key, trip_key, job.steps, bytes_down, bytes_up))
        end = now + (seconds + job.peer_seconds)
        if not isinstance(self.availability, Always):
            end = self._end(client, client_key, now, seconds + job.peer_seconds, limit)
        if end > limit:
            return limit, False
        if end == math.inf:
            raise ConfigError(
                f"needed: client {client} was asked while it sleeps, and never wakes up", key="trip_timeout"
            )
        return end, True

    def _end(self, client: int, client_key: int, now: float, seconds: float, limit: float) -> float:
        """When a client that is asked now has worked for so many seconds.  One that sleeps begins when it wakes up."""
        left = seconds
        for _ in range(SLEEPS):
            awake, until = self.availability.span(client, client_key, now)
            if awake and (self.on_leave == "finish" or now + left <= until):
                return now + left
            if awake:
                left -= until - now
                if self.on_leave == "lost" and not self.availability.span(client, client_key, until)[0]:
                    return math.inf  # it leaves, and the update with it
            now = until
            if now > limit:
                break
        return math.inf

    def check(self, clients: int) -> None:
        """Reject lists that do not fit the clients, and environments in which no client ever works."""
        for table, law in (("delay", self.delay), ("availability", self.availability), ("local_work", self.local_work)):
            for name in law.per_client:
                values = getattr(law, name)
                if isinstance(values, tuple) and values and len(values) != clients:
                    raise ConfigError(f"{len(values)} values for {clients} clients", key=f"environment.{table}.{name}")
        if not any(self.availability.probability_of(client) != 0 for client in range(clients)):
            raise ConfigError("nobody is ever awake", key="environment.availability.probability")
        if self.attack is not None:
            self.attack.check(clients)

    def attackers(self, seed: int, clients: int) -> frozenset[int]:
        """Who of so many clients attacks."""
        return self.attack.attackers(seed, clients) if self.attack is not None else frozenset()

    def awake(self, seed: int, client: int, now: float) -> bool:
        if isinstance(self.availability, Always):
            return True
        return self.availability.span(client, device_key(seed, client), now)[0]

    def wakes(self, seed: int, client: int, now: float) -> float:
        """When a client that sleeps may be awake."""
        return self.availability.span(client, device_key(seed, client), now)[1]

    def steps(self, seed: int, asked: int, client: int, job_seed: int, now: float) -> int:
        if isinstance(self.local_work, Requested):
            return asked
        return self.local_work.steps(asked, client, device_key(seed, client), job_seed, now)


@functools.cache
def _devices(seed: int) -> int:
    return key(seed, "device")


def device_key(seed: int, client: int) -> int:
    """What everything random about a device follows from: key(seed, "device", client)."""
    return fold_in(_devices(seed), client)
