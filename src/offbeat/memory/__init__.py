"""The per-client memory that cache-aided rules share."""

from offbeat.memory.base import Memory
from offbeat.memory.dense import Dense
from offbeat.memory.quantised import Quantised

MEMORIES: dict[str, type[Memory]] = {"dense": Dense, "quantised": Quantised}

__all__ = ["MEMORIES", "Dense", "Memory", "Quantised"]
