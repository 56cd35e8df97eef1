"""Communication among the clients within a round of a gossip algorithm."""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.algorithms.topology import Topology


@dataclass(frozen=True, kw_only=True)
class Network:
    """How the clients of a gossip algorithm train and mix their models within a round."""

    topology: Topology
    """Topology that defines the mixing matrix W."""
    mixes: bool = True
    """Whether the models are mixed after every step."""
    resample: bool = False
    """Whether the clients that take a step are drawn in every step."""
    adapted: bool = False
    """Whether only the clients that take a step mix their models."""
    clusters: int = 1
    """Number of disjoint clusters."""
    peer_seconds: float = 0.0
    """Virtual seconds per exchange between clients."""
    restarts: bool = True
    """Whether all clients start each round at x. In a decentralized algorithm they continue from their own models, with
    the state of their optimizers."""
    average_every: int = 0
    """Steps between two averages over all clients, or 0 for none."""

    @property
    def seconds_per_step(self) -> float:
        """Mean seconds of communication per step: the exchange with the neighbors and the periodic global average."""
        return self.peer_seconds * (self.mixes + (1 / self.average_every if self.average_every else 0))

    def cluster(self, client: int, clients: int) -> int:
        """Return the cluster of a client. Clusters are blocks of consecutive clients of nearly equal size."""
        return client * self.clusters // clients
