"""What clients work on: a model, the data they have, and a local rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offbeat.clients import ClientRule, plan
from offbeat.data import Federated
from offbeat.errors import DivergenceError
from offbeat.messages import Job, Update
from offbeat.vector import Layout


class Work:
    """The data lives on the device as it is stored, and is gathered by index."""

    def __init__(self, module: nn.Module, data: Federated, rule: ClientRule, device: torch.device) -> None:
        self.module = module.to(device)
        self.layout = Layout.of(module)
        self.data, self.rule, self.device = data, rule, device
        self.x, self.y = data.dataset.x.to(device), data.dataset.y.to(device)

    def steps(self, client: int) -> int:
        return self.rule.local_steps(self.data.size(client))

    def plan(self, job: Job) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Indices into the data set (steps, B), and how many of each row count."""
        positions, counts = plan(self.data.size(job.client), self.rule.batch_size, job.steps, job.seed)
        return self.data.indices(job.client)[positions], counts

    def inputs(self, indices: Tensor) -> Tensor:
        return self.data.dataset.prepare(self.x[indices])

    def updates(self, jobs: Sequence[Job], deltas: Sequence[Tensor]) -> list[Update]:
        """Results as messages; a result that is not finite stops the run."""
        for job, delta in zip(jobs, deltas, strict=True):
            if not bool(torch.isfinite(delta.sum())):
                raise DivergenceError(
                    f"client {job.client} diverged while training from version {job.version}: its update is not "
                    f"finite.  A smaller client.lr (now {self.rule.lr:g}) or algorithm.eta usually helps."
                )
        return [
            Update(
                job=job.id, client=job.client, version=job.version, delta=delta, steps=job.steps,
                examples=self.data.size(job.client), wire_bytes=delta.nbytes,
            )
            for job, delta in zip(jobs, deltas, strict=True)
        ]  # fmt: skip
