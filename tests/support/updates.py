"""Jobs, updates and arrival histories, and clients with a closed-form solution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from offbeat.messages import Job, Update


def job(number: int, client: int, version: int, x: Tensor, steps: int = 3, seed: int = 0) -> Job:
    """Return a job with the given id."""
    return Job(id=number, client=client, version=version, x=x, steps=steps, seed=seed)


def update(of: Job, delta: Tensor, examples: int = 10) -> Update:
    """Return the update that answers a job."""
    return Update(
        job=of.id, client=of.client, version=of.version, delta=delta, steps=of.steps, examples=examples, wire_bytes=0
    )


class Arrivals:
    """A random history: the client of each arrival, its base version, its Δ, and the arrivals that trigger a step."""

    def __init__(self, seed: int, clients: int = 7, dim: int = 23, count: int = 50, buffer: int | None = None) -> None:
        rng = np.random.default_rng(seed)
        self.clients, self.dim = clients, dim
        self.x0 = rng.standard_normal(dim)
        self.who = [int(c) for c in rng.integers(clients, size=count)]
        self.deltas = rng.standard_normal((count, dim))
        self.examples = [int(n) for n in rng.integers(1, 50, size=count)]
        size = buffer or int(rng.integers(1, 6))
        self.steps_after = [(n + 1) % size == 0 for n in range(count)]
        self.lags = [int(n) for n in rng.integers(0, 6, size=count)]  # upper bound on each update's staleness


class Quadratics:
    """Clients with f_i(x) = ½‖x − c_i‖², whose local training is exact; the spread of the centers is the heterogeneity.

    Args:
        centers: One row c_i per client.
        lr: Local learning rate.
        steps: Local steps K.
    """

    def __init__(self, centers: Tensor, lr: float, steps: int) -> None:
        self.centers = centers
        self.shrinkage = (1 - lr) ** steps  # K steps of gradient descent shrink the distance to c_i by this factor
        self.bulk = 64

    def upload_bytes(self, job: Job) -> int:
        """Return the size of an uncompressed update."""
        return 4 * self.centers.shape[1]

    def download_bytes(self, job: Job) -> int:
        """Return the size of an uncompressed model."""
        return 4 * self.centers.shape[1]

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        """Return the exact result of K local steps for each job."""
        return [update(j, (1 - self.shrinkage) * (self.centers[j.client] - j.x)) for j in jobs]

    @property
    def optimum(self) -> Tensor:
        """Return the minimizer of the mean of all f_i."""
        return torch.mean(self.centers, dim=0)
