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
from offbeat.world.effort import EFFORTS, AsAsked, Battery, Effort, PerClient, UniformSteps
from offbeat.world.world import World

__all__ = [
    "AVAILABILITIES",
    "DELAYS",
    "EFFORTS",
    "Always",
    "AsAsked",
    "Availability",
    "Battery",
    "Bernoulli",
    "Constant",
    "Delay",
    "Devices",
    "Effort",
    "Exponential",
    "HalfNormal",
    "LogNormal",
    "PerClient",
    "Speeds",
    "Trip",
    "Uniform",
    "UniformSteps",
    "World",
]
