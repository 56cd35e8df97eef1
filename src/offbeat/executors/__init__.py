"""Interchangeable ways to run the local training of many jobs, and the choice between them."""

from offbeat.executors.base import Executor, arithmetic, threads
from offbeat.executors.choice import EXECUTORS, Choice, Name, choose
from offbeat.executors.gossip import Gossip
from offbeat.executors.graphs import Graphs
from offbeat.executors.probe import why_not_stackable
from offbeat.executors.processes import Processes
from offbeat.executors.ray import Ray
from offbeat.executors.sequential import Sequential
from offbeat.executors.vectorized import Vectorized

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
    "Vectorized",
    "arithmetic",
    "choose",
    "threads",
    "why_not_stackable",
]
