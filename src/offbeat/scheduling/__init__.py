"""Schedulers: when the server steps and how many clients train."""

from offbeat.scheduling.anarchic import Anarchic
from offbeat.scheduling.base import Scheduler
from offbeat.scheduling.buffered import Buffered
from offbeat.scheduling.continuous import Continuous, PerArrival
from offbeat.scheduling.periodic import Periodic
from offbeat.scheduling.rounds import Available, Rounds

SCHEDULERS: dict[str, type[Scheduler]] = {
    "rounds": Rounds,
    "available": Available,
    "buffered": Buffered,
    "continuous": Continuous,
    "per-arrival": PerArrival,
    "periodic": Periodic,
    "anarchic": Anarchic,
}

__all__ = [
    "SCHEDULERS",
    "Anarchic",
    "Available",
    "Buffered",
    "Continuous",
    "PerArrival",
    "Periodic",
    "Rounds",
    "Scheduler",
]
