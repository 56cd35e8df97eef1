"""Simulated environment: delays, losses, availability, local work and attacks."""

from offbeat.environment.attacks import (
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
from offbeat.environment.availability import Always, Availability, Bernoulli, ByLabel
from offbeat.environment.delays import (
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
from offbeat.environment.environment import Environment
from offbeat.environment.local_work import LOCAL_WORK, Battery, LocalWork, PerClient, Requested, UniformSteps
from offbeat.environment.traces import FedScaleDevices, FlashSpeeds, Mix, Trace

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
    "ATTACKS",
    "AVAILABILITIES",
    "DELAYS",
    "LOCAL_WORK",
    "ALittle",
    "Always",
    "Attack",
    "Availability",
    "Battery",
    "Bernoulli",
    "ByLabel",
    "Constant",
    "Delay",
    "Devices",
    "Environment",
    "Exponential",
    "FedScaleDevices",
    "FlashSpeeds",
    "Forgery",
    "Gaussian",
    "HalfNormal",
    "InnerProduct",
    "Known",
    "LabelFlip",
    "LocalWork",
    "LogNormal",
    "Mix",
    "Omniscient",
    "PerClient",
    "Poisoning",
    "Requested",
    "Scaled",
    "SignFlip",
    "Speeds",
    "StaleReplay",
    "Trace",
    "Trip",
    "Uniform",
    "UniformSteps",
]  # fmt: skip
