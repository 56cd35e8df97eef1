"""Gossip between clients during local training: all models of the network form one stack (N, d).

In each local iteration some clients take a step, then all mix: X ← W X. The jobs of a round are trained together,
because the network trains as a whole; every job must start from the same model x.

During a round the stack holds the drifts X − x, and these are mixed: the rows of W sum to one, so W (X − x) = W X − x.
In floating point, W X would move entries that no client has trained by a rounding error, which an adaptive server would
take for a gradient. A drift of zero stays exactly zero.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.algorithms.network import Network
from offbeat.algorithms.topology import rho
from offbeat.client.batches import forward_slices
from offbeat.client.local_step import clipped
from offbeat.client.rules import State
from offbeat.client.runtime import ClientRuntime
from offbeat.client.training import Trained, seeded_generators
from offbeat.errors import DivergenceError
from offbeat.executors import gpu
from offbeat.executors.base import Task, TrainingOutcome
from offbeat.executors.vectorized import Vectorized
from offbeat.messages import Job
from offbeat.random import key, stream
from offbeat.server.extensions import BUFFERS

SAVED = ("peer_bytes", "rounds", "models", "states", "statistics", "taken", "consensus")  # attributes in a checkpoint


class Gossip(Vectorized):
    """Trains the clients of a network that average their models with their neighbors.

    Attributes:
        matrix: The mixing matrix W of the whole network.
        rho: ρ = ‖W − 11ᵀ/n‖₂ of the worst cluster, which is 0 for full averaging and 1 without mixing.
        rounds: Rounds so far.
        models: Models of all clients between rounds, for rules that do not restart from x; else None.
        states: State of the client rule of all clients, for rules that do not restart from x.
        statistics: Running statistics of all clients, if the model has any.
        taken: Local iterations so far.
        consensus: Root mean square distance of the models from their mean, after the last round.

    Args:
        runtime: The client runtime of the run.
        network: The network of the algorithm.
        seed: Seed of the topology and of the sampling.
        cohort: Number of clients that take steps in a round; all when left out. Matters for ρ where only these mix.
    """

    def __init__(self, runtime: ClientRuntime, network: Network, seed: int, cohort: int | None = None) -> None:
        super().__init__(runtime)
        context = runtime.context
        self.network, self.seed, self.clients = network, seed, context.data.clients
        self.bulk = self.clients  # a round is trained in one call
        self.groups = [
            np.array([i for i in range(self.clients) if network.cluster(i, self.clients) == k])
            for k in range(network.clusters)
        ]
        self.matrix = self._matrix(self.groups, seed)
        self._mixing, self._exchange = self.matrix.to(context.device), self._bytes(self.matrix)
        self.peer_bytes = 0
        self.rounds = 0
        self.models: Tensor | None = None
        self.states: State | None = None
        self.statistics: Tensor | None = None
        self.taken = 0
        self.consensus = 0.0
        self.rho = self._rho(self.clients if cohort is None else cohort)

    def _rho(self, cohort: int) -> float:
        groups = [len(group) for group in self.groups]
        sizes = [cohort // len(groups)] * len(groups) if self.network.adapted else groups
        matrices = [self.network.topology.matrix(n, key(self.seed, k)) for k, n in enumerate(sizes)]
        return max(rho(w) for w in matrices) if self.network.mixes else 1.0

    @property
    def poolable(self) -> bool:
        """Return False: a network cannot share a stack with other runs."""
        return False

    def metrics(self) -> dict[str, float]:
        """Return ρ of the mixing matrix and the distance of the models from consensus."""
        return {"rho": self.rho, "consensus": self.consensus}

    def description(self) -> dict[str, Any]:
        """Return the network's nodes, edges and ρ."""
        matrix = self.matrix.numpy()
        edges = np.argwhere(np.triu(matrix + matrix.T, k=1) > 0)
        return {"network": {"nodes": self.clients, "edges": edges.tolist(), "rho": self.rho}}

    def local_results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Trained]]:
        """Train a round of the whole network."""
        jobs = [job for _, job in tasks]
        if not jobs:
            return
        assert all(runtime is self.runtime for runtime, _ in tasks), "a network cannot share a stack"
        assert len({job.version for job in jobs}) == 1, "a network trains in synchronous rounds"
        self.context.module.train()
        self.rounds += 1
        x, b = jobs[0].x, self.context.received_buffers(dict(jobs[0].extra))
        if self.models is None:
            drift = x.new_zeros(self.clients, len(x))
            begun = self.context.rule.begin(x.expand(self.clients, -1), {}, {})
            self.states = {name: value.clone() for name, value in begun.items()}  # rows of it will be written
            self.statistics = None if b is None else b.expand(self.clients, -1).clone()
        else:
            drift = self.models.sub_(x)
        self._received = b
        self._losses, self._counts = x.new_zeros(self.clients), x.new_zeros(self.clients)
        with seeded_generators(key(*(job.seed for job in jobs)), self.context.device):
            drift = self._iterate(drift, x, jobs)
        distance = drift - drift.mean(dim=0)
        self.consensus = float(distance.square().sum(dim=1).mean().sqrt())
        finite = torch.isfinite(drift.sum(dim=1)).tolist()
        losses = (self._losses / self._counts).tolist()  # NaN for a client that was never chosen
        for place, i in enumerate(job.client for job in jobs):
            extra = {} if self.statistics is None else {BUFFERS: self.statistics[i].clone()}
            yield place, Trained(finite[i], drift[i].clone(), extra, {}, losses[i])
        self.models = None if self.network.restarts else drift.add_(x)
        if self.network.restarts:
            self.states = self.statistics = None

    def outcome(self, task: Task, trained: Trained) -> TrainingOutcome:
        """Return a client's update; nothing is sent in networks without a server."""
        found = super().outcome(task, trained)
        if isinstance(found, DivergenceError) or self.network.restarts:
            return found
        return replace(found, wire_bytes=0)

    def upload_bytes(self, job: Job) -> int:
        """Return the size of an update; 0 for networks without a server."""
        return super().upload_bytes(job) if self.network.restarts else 0

    def download_bytes(self, job: Job) -> int:
        """Return the size of a download; 0 for networks without a server."""
        return super().download_bytes(job) if self.network.restarts else 0

    def _iterate(self, drift: Tensor, x: Tensor, jobs: Sequence[Job]) -> Tensor:
        """Return the drifts X − x after the local iterations of a round."""
        by_client = {job.client: job for job in jobs}
        plans: dict[int, Any] = {}  # client → its batches, their counts, and how many it has used
        for t in range(jobs[0].steps):
            chosen = self._chosen(t, by_client)
            batch, weight = self._batches(chosen, plans, by_client, jobs[0])
            index = torch.from_numpy(chosen).to(drift.device)
            drift[index] = self._step(drift[index].add_(x), x, batch, weight, index, jobs[0].rate).sub_(x)
            self.taken += 1
            if self.network.mixes:
                drift = self._mix(drift, chosen)
            if self.network.average_every and self.taken % self.network.average_every == 0:
                drift = drift.mean(dim=0, keepdim=True).expand_as(drift).clone()
                if self.statistics is not None:
                    self.statistics = self.statistics.mean(dim=0, keepdim=True).expand_as(self.statistics).clone()
                self.peer_bytes += self._model_bytes * self.clients * (self.clients - 1)
        return drift

    def _chosen(self, t: int, by_client: dict[int, Job]) -> Any:
        """Return S_r,t in ascending order: the clients that report, or a new sample of the same size per cluster."""
        if not self.network.resample:
            return np.array(sorted(by_client))
        rng = stream(self.seed, "resample", self.rounds, t)
        drawn = []
        for group in self.groups:
            count = sum(int(i) in by_client for i in group)
            drawn.append(rng.choice(group, size=count, replace=False))
        return np.sort(np.concatenate(drawn))

    def _batches(
        self, chosen: Any, plans: dict[int, Any], by_client: dict[int, Job], pattern: Job
    ) -> tuple[Tensor, Tensor]:
        """Return the next batch of every chosen client; one that does not report has a separate seed."""
        rows = []
        for client in map(int, chosen):
            if client not in plans:
                seed = by_client[client].seed if client in by_client else key(self.seed, "peer", client, self.rounds)
                job = Job(0, client, pattern.version, pattern.x, pattern.steps, seed)
                plans[client] = [*self.context.plan(job), 0]
            batches, counts, used = plans[client]
            plans[client][2] += 1
            rows.append((batches[used], counts[used]))
        width = max(len(batch) for batch, _ in rows)
        index = np.zeros((len(rows), width, *rows[0][0].shape[1:]), dtype=np.int64)
        weight = np.zeros((len(rows), width))
        for row, (batch, count) in enumerate(rows):
            index[row, : len(batch)] = batch
            weight[row, :count] = 1 / count
        return torch.from_numpy(index).to(self.context.device), torch.from_numpy(weight).to(
            self.context.device, pattern.x.dtype
        )

    def _step(self, y: Tensor, x: Tensor, batch: Tensor, weight: Tensor, index: Tensor, rate: float) -> Tensor:
        """Return the models of the chosen clients after a step; their states and statistics change in place."""
        rule, states = self.context.rule, self.states
        assert states is not None
        g = self._gradient(y, batch, weight, index)
        if rule.clip_norm is not None:
            (g,) = clipped([g], rule.clip_norm)
        stepped, after = rule.step(y, g, x, rule.lr * rate, {name: value[index] for name, value in states.items()})
        for name, value in after.items():
            states[name][index] = value
        return stepped

    def _gradient(self, y: Tensor, batch: Tensor, weight: Tensor, index: Tensor) -> Any:
        """Return the gradient of a step of the chosen clients."""
        statistics = None if self.statistics is None else self.statistics[index]
        total: Any = None
        for part in forward_slices(batch.shape[1], self.context.rule.batch_size):
            g, losses = self._stack_gradient(y, batch[:, part], weight[:, part], statistics)
            total = g if total is None else total + g
            self._losses[index] += losses
        self._counts[index] += 1
        if self.statistics is not None and statistics is not None:
            self.statistics[index] = statistics
        return total

    @functools.cached_property
    def _stack_gradient(self) -> gpu.StackGradient:
        stream = self.stream if self.context.device.type == "cuda" else None
        return gpu.StackGradient(self.stack.losses, self.context.layout, stream, self.compiled)

    def _mix(self, drift: Tensor, chosen: Any) -> Tensor:
        """Return W·drift; running statistics are mixed alike, as differences from those of the round's start."""
        matrix, sent = self._mixing, self._exchange
        if self.network.adapted:
            groups = [np.intersect1d(chosen, group) for group in self.groups]
            matrix = self._matrix(groups, key(self.seed, self.rounds, self.taken))
            sent = self._bytes(matrix)
        self.peer_bytes += sent
        if self.statistics is not None and self._received is not None:
            mixed = matrix.to(self.statistics) @ self.statistics.sub_(self._received)
            self.statistics = mixed.add_(self._received)
        return matrix.to(drift) @ drift

    @property
    def _model_bytes(self) -> int:
        """Bytes of a model and its running statistics."""
        return 4 * (self.context.layout.dim + self.context.buffers.dim)

    def _matrix(self, groups: Sequence[Any], seed: int) -> Tensor:
        """Return W for the whole network: the topology within each group, and no mixing for all other clients."""
        w = np.eye(self.clients)
        for k, group in enumerate(groups):
            if len(group):
                w[np.ix_(group, group)] = self.network.topology.matrix(len(group), key(seed, k))
        return torch.from_numpy(w)

    def _bytes(self, matrix: Tensor) -> int:
        edges = int(torch.count_nonzero(matrix) - torch.count_nonzero(matrix.diagonal()))
        return self._model_bytes * edges

    def state_dict(self) -> dict[str, Any]:
        """Return the clients' state and that of the network."""
        return super().state_dict() | {name: getattr(self, name) for name in SAVED}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint."""
        super().load_state_dict(state)
        for name in SAVED:
            setattr(self, name, state[name])
