"""The server loop, the virtual clock, and the executors that do the clients' work."""

from offbeat.engine.dispatch import DISPATCHES, Buffered, Dispatch, KeepBusy, PerArrival, Rounds
from offbeat.engine.evaluate import Evaluator
from offbeat.engine.events import Arrival, Event, Lost, Outcome, Tick, Transport
from offbeat.engine.executors import EXECUTORS, Executor, choose, threads
from offbeat.engine.loop import Loop
from offbeat.engine.simulated import Simulated, Trainer
from offbeat.engine.work import Work

__all__ = [
    "DISPATCHES",
    "EXECUTORS",
    "Arrival",
    "Buffered",
    "Dispatch",
    "Evaluator",
    "Event",
    "Executor",
    "KeepBusy",
    "Loop",
    "Lost",
    "Outcome",
    "PerArrival",
    "Rounds",
    "Simulated",
    "Tick",
    "Trainer",
    "Transport",
    "Work",
    "choose",
    "threads",
]
