"""The server loop, the virtual clock, and the executors that do the clients' work."""

from offbeat.engine.dispatch import (
    DISPATCHES,
    Anarchic,
    Available,
    Buffered,
    Dispatch,
    KeepBusy,
    PerArrival,
    Periodic,
    Rounds,
)
from offbeat.engine.evaluate import Evaluator
from offbeat.engine.events import Arrival, Event, Lost, Outcome, Tick, Transport
from offbeat.engine.executors import EXECUTORS, Executor, choose, threads
from offbeat.engine.forgers import Forgers
from offbeat.engine.gate import Gate
from offbeat.engine.loop import Loop, Terms
from offbeat.engine.simulated import Simulated, Trainer
from offbeat.engine.work import Work

__all__ = [
    "DISPATCHES",
    "EXECUTORS",
    "Anarchic",
    "Arrival",
    "Available",
    "Buffered",
    "Dispatch",
    "Evaluator",
    "Event",
    "Executor",
    "Forgers",
    "Gate",
    "KeepBusy",
    "Loop",
    "Lost",
    "Outcome",
    "PerArrival",
    "Periodic",
    "Rounds",
    "Simulated",
    "Terms",
    "Tick",
    "Trainer",
    "Transport",
    "Work",
    "choose",
    "threads",
]
