"""Executors, and the choice between them."""

from offbeat.engine.executors.base import Executor, arithmetic, threads
from offbeat.engine.executors.choice import EXECUTORS, Choice, Name, choose
from offbeat.engine.executors.gossip import Gossip
from offbeat.engine.executors.graphs import Graphs
from offbeat.engine.executors.probe import why_not_stackable
from offbeat.engine.executors.processes import Processes
from offbeat.engine.executors.ray import Ray
from offbeat.engine.executors.sequential import Sequential
from offbeat.engine.executors.vectorised import Vectorised

__all__ = [
    "EXECUTORS",
    "Choice",
    "Executor",
    "Gossip",
    "Graphs",
    "Name",
    "Processes",
    "Ray",
    "Sequential",
    "Vectorised",
    "arithmetic",
    "choose",
    "threads",
    "why_not_stackable",
]
