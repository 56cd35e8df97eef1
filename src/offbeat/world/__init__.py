"""What the outside does: how long a trip takes, whether it arrives, who is awake, who attacks."""

from offbeat.world.attacks import (
    ATTACKS,
    ALittle,
    Attack,
    Forgery,
    Gaussian,
    InnerProduct,
    Known,
    LabelFlip,
    Omniscient,
    Poisoning,
    Scaled,
    SignFlip,
    StaleReplay,
)
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
    "ATTACKS", "AVAILABILITIES", "DELAYS", "EFFORTS", "ALittle", "Always", "AsAsked", "Attack", "Availability",
    "Battery", "Bernoulli", "ByLabel", "Constant", "Delay", "Devices", "Effort", "Exponential", "FedScaleDevices",
    "FlashSpeeds", "Forgery", "Gaussian", "HalfNormal", "InnerProduct", "Known", "LabelFlip", "LogNormal", "Mix",
    "Omniscient", "PerClient", "Poisoning", "Scaled", "SignFlip", "Speeds", "StaleReplay", "Trace", "Trip", "Uniform",
    "UniformSteps", "World",
]  # fmt: skip
