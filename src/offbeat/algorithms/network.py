"""What clients that talk to each other do within a round: the part of a gossip rule that is not the server's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from offbeat.algorithms.topology import Topology


@dataclass(frozen=True, kw_only=True)
class Network:
    topology: Topology
    mixes: bool = True
    resample: bool = False
    adapted: bool = False
    clusters: int = 1
    peer_seconds: float = 0.0
    restarts: bool = True
    """Whether all clients start each round at x; a decentralized rule goes on from its own models."""
    local: Literal["rule", "adam"] = "rule"
    """The local step: the client rule's, or Adam with moments that each client keeps."""
    average_every: int = 0
    """Steps between two averages over everybody; 0: never."""

    @property
    def seconds_per_step(self) -> float:
        """What talking takes: an exchange with the neighbours, and a global average every so often."""
        return self.peer_seconds * (self.mixes + (1 / self.average_every if self.average_every else 0))

    def cluster(self, client: int, clients: int) -> int:
        """Blocks of neighbouring numbers, as equal as can be."""
        return client * self.clusters // clients
