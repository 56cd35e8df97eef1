"""The environment of a simulation."""

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
SLEEPS = 100_000  # availability spans after which a client counts as permanently unavailable


@dataclass(kw_only=True, frozen=True)
class Environment(Options):
    """Delays, losses, availability, local work and attacks.

    All random results depend on the seed, the client and the job only.
    """

    delay: Delay = field(default_factory=HalfNormal)
    """Duration of a trip: from sending a job to receiving its update."""
    availability: Availability = field(default_factory=Always)
    """Which clients are available for a job."""
    on_leave: Literal["finish", "lost", "late"] = "finish"
    """Effect of a client becoming unavailable during a trip: none, the update is lost, or the trip resumes later."""
    local_work: LocalWork = field(default_factory=Requested)
    """Number of local steps that a client takes."""
    loss: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Probability that an update is lost."""
    trip_timeout: Positive | None = None
    """Seconds after which the server stops waiting for an update and may select the client again."""
    attack: Attack | None = None
    """Attack that some of the clients carry out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for reason, needed in ((f"loss = {self.loss:g}", self.loss), ("on_leave = 'lost'", self.on_leave == "lost")):
            if needed and self.trip_timeout is None:
                raise ConfigError(
                    f"required with {reason}: otherwise the server waits forever for a lost update", key="trip_timeout"
                )

    def trip(self, seed: int, job: Job, bytes_down: int, bytes_up: int, now: float) -> tuple[float, bool]:
        """Return when a job that is sent now ends and whether its update arrives.

        Args:
            seed: The seed of the run.
            job: The job.
            bytes_down: Size of the encoded model.
            bytes_up: Size of the encoded update.
            now: The current time.

        Returns:
            The time of the arrival and True, or the time at which the server stops waiting and False.

        Raises:
            ConfigError: The client never becomes available and there is no timeout.
        """
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
                f"required: client {client} was selected while unavailable and never becomes available",
                key="trip_timeout",
            )
        return end, True

    def _end(self, client: int, client_key: int, now: float, seconds: float, limit: float) -> float:
        """Return when a client that is selected now has worked for the given seconds, or infinity if never.

        An unavailable client starts when it becomes available.
        """
        left = seconds
        for _ in range(SLEEPS):
            awake, until = self.availability.span(client, client_key, now)
            if awake and (self.on_leave == "finish" or now + left <= until):
                return now + left
            if awake:
                left -= until - now
                if self.on_leave == "lost" and not self.availability.span(client, client_key, until)[0]:
                    return math.inf
            now = until
            if now > limit:
                break
        return math.inf

    def check(self, clients: int) -> None:
        """Check the options against the number of clients.

        Args:
            clients: The number of clients.

        Raises:
            ConfigError: A list has the wrong length, no client is ever available, or an attacker does not exist.
        """
        models = (("delay", self.delay), ("availability", self.availability), ("local_work", self.local_work))
        for table, model in models:
            for name in model.per_client:
                values = getattr(model, name)
                if isinstance(values, tuple) and values and len(values) != clients:
                    raise ConfigError(
                        f"{len(values)} values for {clients} clients: give one per client",
                        key=f"environment.{table}.{name}",
                    )
        if not any(self.availability.probability_of(client) != 0 for client in range(clients)):
            raise ConfigError(
                "no client is ever available: give at least one a positive probability",
                key="environment.availability.probability",
            )
        if self.attack is not None:
            self.attack.check(clients)

    def attackers(self, seed: int, clients: int) -> frozenset[int]:
        """Return the clients that attack."""
        return self.attack.attackers(seed, clients) if self.attack is not None else frozenset()

    def awake(self, seed: int, client: int, now: float) -> bool:
        """Return whether a client is available."""
        if isinstance(self.availability, Always):
            return True
        return self.availability.span(client, device_key(seed, client), now)[0]

    def wakes(self, seed: int, client: int, now: float) -> float:
        """Return the next time at which an unavailable client may become available."""
        return self.availability.span(client, device_key(seed, client), now)[1]

    def steps(self, seed: int, requested: int, client: int, job_seed: int, now: float) -> int:
        """Return the number of local steps of a job that starts now.

        Args:
            seed: The seed of the run.
            requested: The number of steps that the server requests.
            client: The client.
            job_seed: The seed of the job.
            now: The current time.
        """
        if isinstance(self.local_work, Requested):
            return requested
        return self.local_work.steps(requested, client, device_key(seed, client), job_seed, now)


@functools.cache
def _devices(seed: int) -> int:
    return key(seed, "device")


def device_key(seed: int, client: int) -> int:
    """Return the random key of a device: key(seed, "device", client)."""
    return fold_in(_devices(seed), client)
