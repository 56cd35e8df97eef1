"""DSGD, DAdam and PGA: no server, only neighbours.

    X    all clients' models, one a row;  W  mixing matrix
    DSGD    X ← W (X − η_l G)                            Lian et al., NeurIPS 2017
    DAdam   the same with each client's own Adam step    Nazari et al. 2019; Chen et al. 2021
    PGA     DSGD, and every H steps X ← 11ᵀ/N X          Chen et al., ICML 2021

A "round" is `client.steps` steps of everybody; x is the mean of all models, which is only looked at, never sent.  The
models live at the clients (`offbeat.executors.gossip`).  DAdam's published variants differ in what is mixed;
here the models are, the moments are not.
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
class _Decentralised(Algorithm):
    topology: Topology = field(default_factory=Ring)
    """W."""
    peer_seconds: NonNegative = 0.0
    """Virtual seconds of one exchange between clients."""

    schedulers: ClassVar[tuple[str, ...]] = ("available",)
    state_names: ClassVar[tuple[str, ...]] = ("mean",)

    def reset(self) -> None:
        self.mean = Mean()
        self.mean.start(self.x)

    def accumulate(self, job: Job, update: Update) -> None:
        self.mean.add(update.client, update.delta)

    def pseudo_gradient(self) -> Tensor:
        return self.mean.aggregate()


@dataclass(kw_only=True)
class DSGD(_Decentralised):
    def network(self) -> Network:
        return Network(topology=self.topology, restarts=False, peer_seconds=self.peer_seconds)


@dataclass(kw_only=True)
class DAdam(_Decentralised):
    def network(self) -> Network:
        return Network(topology=self.topology, restarts=False, local="adam", peer_seconds=self.peer_seconds)


@dataclass(kw_only=True)
class PGA(_Decentralised):
    average_every: PositiveInt = 24
    """H: steps between two global averages."""

    def network(self) -> Network:
        return Network(
            topology=self.topology,
            restarts=False,
            average_every=self.average_every,
            peer_seconds=self.peer_seconds,
        )
