"""DSGD, DAdam and PGA: decentralized training without a server.

    X       the models of all clients, one per row
    W       mixing matrix
    G       the clients' stochastic gradients, one per row
    DSGD    X ← W (X − η_l G)                              Lian et al., NeurIPS 2017
    DAdam   DSGD with a local Adam step on each client     Nazari et al. 2019; Chen et al. 2021
    PGA     DSGD, and X ← 11ᵀ/N X every H steps            Chen et al., ICML 2021

A round is `client.steps` steps of all clients. x is the mean of all models; it is evaluated but never sent. The models
stay with the clients (`offbeat.executors.gossip`). DSGD and PGA take the steps of any client rule without state of
its own; DAdam needs `adam`.

Deviations: the published variants of DAdam differ in what they mix. Here the models are mixed and the moments are not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offbeat.aggregation import Mean
from offbeat.algorithms.base import Algorithm
from offbeat.algorithms.network import Network
from offbeat.algorithms.topology import Ring, Topology
from offbeat.messages import Job, Update
from offbeat.options import NonNegative, PositiveInt


@dataclass(kw_only=True)
class _Decentralized(Algorithm):
    """Observer of a decentralized run: x is the mean of all models."""

    topology: Topology = field(default_factory=Ring)
    """Topology that defines W."""
    peer_seconds: NonNegative = 0.0
    """Virtual seconds per exchange between clients."""

    schedulers: ClassVar[tuple[str, ...]] = ("available",)
    state_names: ClassVar[tuple[str, ...]] = ("mean",)

    def reset(self) -> None:
        """Start with an empty mean."""
        self.mean = Mean()
        self.mean.start(self.x)

    def accumulate(self, job: Job, update: Update) -> None:
        """Add the change of a client's model to the mean."""
        self.mean.add(update.client, update.delta)

    def pseudo_gradient(self) -> Tensor:
        """Return the mean change of all models."""
        return self.mean.aggregate()

    def network(self) -> Network:
        """Return a network in which the clients keep their own models."""
        return Network(topology=self.topology, restarts=False, peer_seconds=self.peer_seconds)


@dataclass(kw_only=True)
class DSGD(_Decentralized):
    """DSGD (Lian et al., NeurIPS 2017): local SGD steps and averaging with the neighbors."""


@dataclass(kw_only=True)
class DAdam(_Decentralized):
    """DAdam (Nazari et al. 2019; Chen et al. 2021): DSGD with local Adam steps, whose moments the clients keep."""

    client_rule: ClassVar[str | None] = "adam"


@dataclass(kw_only=True)
class PGA(_Decentralized):
    """PGA (Chen et al., ICML 2021): DSGD with a periodic average over all clients."""

    average_every: PositiveInt = 24
    """H: steps between two global averages."""

    def network(self) -> Network:
        """Return a network with a global average every H steps."""
        return Network(
            topology=self.topology,
            restarts=False,
            average_every=self.average_every,
            peer_seconds=self.peer_seconds,
        )
