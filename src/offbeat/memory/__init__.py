"""The per-client memory that cache-aided rules share."""

from offbeat.memory.base import Memory
from offbeat.memory.dense import Dense
from offbeat.memory.disk import Disk
from offbeat.memory.held import Held
from offbeat.memory.quantised import Quantised

MEMORIES: dict[str, type[Memory]] = {"dense": Dense, "quantised": Quantised, "disk": Disk, "held": Held}

__all__ = ["MEMORIES", "Dense", "Disk", "Held", "Memory", "Quantised"]
