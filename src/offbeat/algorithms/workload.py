"""The work that the server requests from a client, and the device data that an algorithm plans it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from offbeat.errors import ConfigError
from offbeat.messages import record


@record
class Workload:
    """The work that the server requests from a client."""

    steps: int  # local steps; 0 if they follow from the client's data and rule
    peer_seconds: float = 0.0  # seconds of communication with other clients, per step
    compression_rate: float | None = None  # replaces the rate of the codec


@dataclass(frozen=True)
class Device:
    """The data about a client that an algorithm uses to plan its work."""

    client: int
    clients: int
    """Total number of clients."""
    steps: int
    """Local steps that the client rule prescribes."""
    period: float | None = None
    """Seconds between two server steps under a periodic scheduler, else None."""
    profile_of: Callable[[int], tuple[float, float] | None] = field(default=lambda client: None)
    """Returns a client's seconds per local step and seconds to upload the whole model, or None if unknown."""
    upload_share: Callable[[float], float] = field(default=lambda rate: rate)
    """Returns the size of an update compressed at a rate, as a share of the whole model's."""

    def seconds_per_step(self, given: tuple[float, ...] = (), client: int | None = None) -> float:
        """Return α, the seconds per local step.

        Args:
            given: Configured values, one per client. They take precedence over those of the delay model.
            client: The client; by default the client of this device.

        Raises:
            ConfigError: The value is neither given nor known, or the number of given values is wrong.
        """
        return self._value(given, "alpha", 0, self.client if client is None else client)

    def upload_seconds(self, given: tuple[float, ...] = ()) -> float:
        """Return β, the seconds to upload the whole model.

        Args:
            given: Configured values, one per client. They take precedence over those of the delay model.

        Raises:
            ConfigError: The value is neither given nor known, or the number of given values is wrong.
        """
        return self._value(given, "beta", 1, self.client)

    def _value(self, given: tuple[float, ...], name: str, place: int, client: int) -> float:
        if given and len(given) != self.clients:
            raise ConfigError(
                f"{len(given)} values for {self.clients} clients: give one per client", key=f"algorithm.{name}"
            )
        if given:
            return given[client]
        profile = self.profile_of(client)
        if profile is None:
            raise ConfigError(
                f"unknown: set {name}, or use a delay model with known device speeds (devices, mix)",
                key=f"algorithm.{name}",
            )
        return profile[place]
