"""Scheduling: when the server steps and how many clients it keeps busy."""

from offbeat.scheduling.schedulers import (
    SCHEDULERS,
    Anarchic,
    Available,
    Buffered,
    Continuous,
    PerArrival,
    Periodic,
    Rounds,
    Scheduler,
)

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
