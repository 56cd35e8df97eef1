"""What the outside does: how long a trip takes, whether it arrives, who is awake."""

from offbeat.world.availability import AVAILABILITIES, Always, Availability, Bernoulli
from offbeat.world.delays import (
    DELAYS,
    Constant,
    Delay,
    Devices,
    Exponential,
    HalfNormal,
    LogNormal,
    Speeds,
    Trip,
    Uniform,
)
from offbeat.world.world import World

__all__ = [
    "AVAILABILITIES",
    "DELAYS",
    "Always",
    "Availability",
    "Bernoulli",
    "Constant",
    "Delay",
    "Devices",
    "Exponential",
    "HalfNormal",
    "LogNormal",
    "Speeds",
    "Trip",
    "Uniform",
    "World",
]
