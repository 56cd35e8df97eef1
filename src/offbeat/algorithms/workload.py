"""The work that a server asks of a client, and what a rule knows about a device when it plans that work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from offbeat.errors import ConfigError
from offbeat.messages import record


@record
class Workload:
    """The work that the server asks of a client."""

    steps: int  # local steps; 0: as many as the client's own data and rule make
    peer_seconds: float = 0.0  # seconds per step for talking to other clients
    compression_rate: float | None = None  # replaces the codec's own


@dataclass(frozen=True)
class Device:
    """A client as a planning rule sees it."""

    client: int
    clients: int
    """Number of clients in all."""
    steps: int
    """Local steps that the client rule prescribes."""
    period: float | None = None
    """Seconds between two server steps, under a periodic scheduler."""
    profile_of: Callable[[int], tuple[float, float] | None] = field(default=lambda client: None)
    """Seconds per local step and seconds to upload the whole model of a client, where they are known."""

    def seconds_per_step(self, given: tuple[float, ...] = (), client: int | None = None) -> float:
        """Return α of this or another device.

        Args:
            given: The rule's own values, one per client; they take precedence over measured ones.
            client: Another client than this device's.

        Raises:
            ConfigError: Neither given nor known, or given for another number of clients.
        """
        return self._value(given, "alpha", 0, self.client if client is None else client)

    def upload_seconds(self, given: tuple[float, ...] = ()) -> float:
        """Return β: seconds to upload the whole model.

        Args:
            given: The rule's own values, one per client; they take precedence over measured ones.

        Raises:
            ConfigError: Neither given nor known, or given for another number of clients.
        """
        return self._value(given, "beta", 1, self.client)

    def _value(self, given: tuple[float, ...], name: str, place: int, client: int) -> float:
        if given and len(given) != self.clients:
            raise ConfigError(f"{len(given)} values for {self.clients} clients", key=f"algorithm.{name}")
        if given:
            return given[client]
        profile = self.profile_of(client)
        if profile is None:
            raise ConfigError(
                f"unknown for these devices: give {name}, or use a delay model that knows its devices: devices, mix",
                key=f"algorithm.{name}",
            )
        return profile[place]
