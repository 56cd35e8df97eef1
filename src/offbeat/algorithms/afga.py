"""AFGA and CAFGA: adaptive federated learning with local gossip averaging.

*Adaptive Federated Learning with Local Gossip Averaging*, Algorithms 1 and 2.

    N       clients, all of which start round r at x_r
    I       local iterations, `client.steps`
    S_r     the clients that report to the server, |S_r| = the concurrency of the scheduler
    S_r,t   |S_r| clients drawn in iteration t; only these take an SGD step
    W       mixing matrix: after every iteration all N models are mixed, X ← W X
    Δ_i     x_i,I − x_r of the clients in S_r
    v       AFGA: mean over S_r;  CAFGA: mean over the clusters of the mean over S_r^k;  both into AMSGrad

The paper's AMSGrad is the default optimizer: ε inside the root, no bias correction, β₁ = 0.9 and β₂ = 0.99. Its ε is
the best of 1e-10, 1e-8, 1e-6 and 1e-4 for each experiment; the default is 1e-8. Other forms are options of `optimizer`.

CAFGA runs AFGA in each of K disjoint clusters, with a matrix W_k each. In the communication-adapted variants only the
clients of S_r,t gossip, over a new topology among them: `adapted = true`. Without `gossip` and `resample` the algorithm
is FedAMSGrad. `offbeat.executors.gossip` runs the local iterations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from offbeat.algorithms.base import Algorithm
from offbeat.algorithms.network import Network
from offbeat.algorithms.optimizers import AMSGrad, ServerOptimizer
from offbeat.algorithms.topology import Ring, Topology
from offbeat.messages import Job, Update
from offbeat.options import NonNegative, Positive, PositiveInt


@dataclass(kw_only=True)
class _Gossip(Algorithm):
    """Server of AFGA and CAFGA: the mean of the cluster means."""

    eta: Positive = 0.01
    optimizer: ServerOptimizer = field(default_factory=AMSGrad)
    topology: Topology = field(default_factory=Ring)
    """Topology that defines W."""
    gossip: bool = True
    """Whether the models are mixed after every iteration."""
    resample: bool = True
    """Whether S_r,t is drawn in every iteration."""
    adapted: bool = False
    """Whether only the clients of S_r,t gossip."""
    peer_seconds: NonNegative = 0.0
    """Virtual seconds per exchange between clients."""
    clusters: PositiveInt = 1
    """Number of clusters K."""

    schedulers: ClassVar[tuple[str, ...]] = ("rounds",)
    state_names: ClassVar[tuple[str, ...]] = ("sums", "counts")

    def network(self) -> Network:
        """Return the gossip network of a round."""
        return Network(
            topology=self.topology,
            mixes=self.gossip,
            resample=self.resample,
            adapted=self.adapted,
            clusters=self.clusters,
            peer_seconds=self.peer_seconds,
        )

    def reset(self) -> None:
        """Start with an empty sum per cluster."""
        self.sums = self.x.new_zeros((self.clusters, *self.x.shape))
        self.counts = torch.zeros(self.clusters, dtype=self.x.dtype, device=self.x.device)

    def accumulate(self, job: Job, update: Update) -> None:
        """Add Δ_i to the sum of its cluster."""
        k = self.network().cluster(update.client, self.clients)
        self.sums[k] += update.delta
        self.counts[k] += 1

    def pseudo_gradient(self) -> Tensor:
        """Return the mean of the cluster means, over the clusters with at least one update."""
        reported = self.counts > 0
        v = (self.sums[reported] / self.counts[reported, None]).mean(dim=0)
        self.reset()
        return v


@dataclass(kw_only=True)
class AFGA(_Gossip):
    """AFGA: gossip among all clients during local training, AMSGrad at the server."""


@dataclass(kw_only=True)
class CAFGA(_Gossip):
    """CAFGA: AFGA in disjoint clusters."""

    clusters: PositiveInt = 5
    """Number of clusters K."""
