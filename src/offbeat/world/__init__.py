"""What the outside does: how long a trip takes, whether it arrives, who is awake."""

from offbeat.world.availability import Always, Availability, Bernoulli, ByLabel
from offbeat.world.delays import Constant, Delay, Devices, Exponential, HalfNormal, LogNormal, Speeds, Trip, Uniform
from offbeat.world.effort import EFFORTS, AsAsked, Battery, Effort, PerClient, UniformSteps
from offbeat.world.traces import FedScaleDevices, FlashSpeeds, Mix, Trace
from offbeat.world.world import World

DELAYS: dict[str, type[Delay]] = {
    "constant": Constant,
    "uniform": Uniform,
    "exponential": Exponential,
    "half-normal": HalfNormal,
    "log-normal": LogNormal,
    "speeds": Speeds,
    "devices": Devices,
    "mix": Mix,
    "fedscale": FedScaleDevices,
    "flash": FlashSpeeds,
}
AVAILABILITIES: dict[str, type[Availability]] = {
    "always": Always,
    "bernoulli": Bernoulli,
    "by-label": ByLabel,
    "trace": Trace,
}

__all__ = [
    "AVAILABILITIES", "DELAYS", "EFFORTS", "Always", "AsAsked", "Availability", "Battery", "Bernoulli", "ByLabel",
    "Constant", "Delay", "Devices", "Effort", "Exponential", "FedScaleDevices", "FlashSpeeds", "HalfNormal",
    "LogNormal", "Mix", "PerClient", "Speeds", "Trace", "Trip", "Uniform", "UniformSteps", "World",
]  # fmt: skip
