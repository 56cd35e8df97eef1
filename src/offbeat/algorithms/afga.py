"""AFGA and CAFGA.  *Adaptive Federated Learning with Local Gossip Averaging*, Algorithms 1 and 2.

    N       clients, all of which start round r at x_r;  I  local iterations, `client.steps`
    S_r     the clients that will report, |S_r| = the scheduler's concurrency
    S_r,t   drawn anew in every iteration, as many: only these take an SGD step
    W       mixing matrix: after every step all N models are mixed, X ← W X
    Δ_i     x_i,I − x_r of the clients in S_r
    v       AFGA: mean over S_r;  CAFGA: mean over the clusters of the mean over S_r^k;  into AMSGrad

CAFGA does the same inside each of K disjoint clusters of clients, with a W_k each.  The communication-adapted variants
gossip only among the clients of S_r,t, over a topology formed anew on them: `adapted = true`.  With `gossip` and
`resample` off the rule is FedAMSGrad.  The local work is done by `offbeat.executors.gossip`.
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
    eta: Positive = 0.01
    optimizer: ServerOptimizer = field(default_factory=AMSGrad)
    topology: Topology = field(default_factory=Ring)
    """W."""
    gossip: bool = True
    """Mix after every step."""
    resample: bool = True
    """Draw S_r,t anew in every iteration."""
    adapted: bool = False
    """Gossip only among the clients that have stepped."""
    peer_seconds: NonNegative = 0.0
    """Virtual seconds of one exchange between clients."""
    clusters: PositiveInt = 1
    """K."""

    schedulers: ClassVar[tuple[str, ...]] = ("rounds",)
    state_names: ClassVar[tuple[str, ...]] = ("sums", "counts")

    def network(self) -> Network:
        return Network(
            topology=self.topology,
            mixes=self.gossip,
            resample=self.resample,
            adapted=self.adapted,
            clusters=self.clusters,
            peer_seconds=self.peer_seconds,
        )

    def reset(self) -> None:
        self.sums = self.x.new_zeros((self.clusters, *self.x.shape))
        self.counts = torch.zeros(self.clusters, dtype=self.x.dtype, device=self.x.device)

    def accumulate(self, job: Job, update: Update) -> None:
        k = self.network().cluster(update.client, self.clients)
        self.sums[k] += update.delta
        self.counts[k] += 1

    def pseudo_gradient(self) -> Tensor:
        heard = self.counts > 0
        v = (self.sums[heard] / self.counts[heard, None]).mean(dim=0)
        self.reset()
        return v


@dataclass(kw_only=True)
class AFGA(_Gossip):
    """One network of all clients."""


@dataclass(kw_only=True)
class CAFGA(_Gossip):
    """Disjoint clusters."""

    clusters: PositiveInt = 5
    """K."""
