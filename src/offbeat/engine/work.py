"""What clients work on: a model, the data they have, a local rule, a code for what travels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offbeat.clients import ClientRule, State, plan, plans
from offbeat.compression import Compression
from offbeat.data import Federated
from offbeat.errors import DivergenceError
from offbeat.messages import Job, Update
from offbeat.seeds import key
from offbeat.vector import Layout

Precision = Literal["float32", "tf32", "bfloat16"]


class Work:
    """The data lives on the device as it is stored, and is gathered by index; runs on the same data share it.

    What clients keep between two jobs (control variates, the error of their code) lives here, one row a client that has
    any.  A client keeps it when it has trained; a job that is lost is never trained and changes nothing.
    """

    def __init__(
        self,
        module: nn.Module,
        data: Federated,
        rule: ClientRule,
        device: torch.device,
        compression: Compression | None = None,
        precision: Precision = "tf32",
    ) -> None:
        self.module = module.to(device)
        self.layout = Layout.of(module)
        self.data, self.rule, self.device = data, rule, device
        self.compression = compression or Compression()
        self.precision = precision
        self.x, self.y = data.dataset.on(device)
        self.kept: dict[str, dict[int, Tensor]] = {name: {} for name in (*rule.keeps, "error")}

    def steps(self, client: int) -> int:
        return self.rule.local_steps(self.data.size(client))

    def upload_bytes(self, job: Job) -> int:
        """What the job's update will cost: the coded update, and what the rule sends beside it as it is."""
        return self.compression.upload.size(self.layout, job.compression_rate) + 4 * self.layout.dim * len(
            self.rule.sends
        )

    def download_bytes(self, job: Job) -> int:
        return self.compression.download.size(self.layout) + sum(t.nbytes for t in job.extra.values())

    def outgoing(self, x: Tensor, version: int) -> Tensor:
        """x as it comes out of the code at the clients."""
        return self.compression.download.carry(x, self.layout, key("download", version))

    def plan(self, job: Job) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Indices into the data set (steps, B), and how many of each row count."""
        positions, counts = plan(self.data.size(job.client), self.rule.batch_size, job.steps, job.seed)
        return self.data.indices(job.client)[positions], counts

    def plans(self, jobs: Sequence[Job]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same for many jobs at once: (most steps, jobs, B) and (most steps, jobs)."""
        sizes = [self.data.size(job.client) for job in jobs]
        positions, counts = plans(sizes, self.rule.batch_size, [job.steps for job in jobs], [job.seed for job in jobs])
        starts = self.data.offsets[[job.client for job in jobs]]
        return self.data.order[positions + starts[None, :, None]], counts

    def inputs(self, indices: Tensor) -> Tensor:
        return self.data.dataset.prepare(self.x[indices])

    def kept_by(self, job: Job) -> State:
        """What the rule finds kept by the job's client."""
        return {name: self.kept[name].get(job.client, torch.zeros_like(job.x)) for name in self.rule.keeps}

    def update(self, job: Job, delta: Tensor, sent: State, kept: State) -> Update:
        """A trained job's result as a message."""
        for name, value in kept.items():
            self.kept[name][job.client] = value
        return Update(
            job=job.id, client=job.client, version=job.version, delta=self._coded(job, delta), steps=job.steps,
            examples=self.data.size(job.client), wire_bytes=self.upload_bytes(job), extra=sent,
        )  # fmt: skip

    def diverged(self, job: Job) -> DivergenceError:
        """What a result that is not finite ends in."""
        return DivergenceError(
            f"client {job.client} diverged while training from version {job.version}: its update is not "
            f"finite.  A smaller client.lr (now {self.rule.lr:g}) or algorithm.eta usually helps."
        )

    def _coded(self, job: Job, delta: Tensor) -> Tensor:
        """Δ as it comes out of the code at the server."""
        codec, feedback = self.compression.upload, self.compression.error_feedback
        if feedback and job.client in self.kept["error"]:
            delta = delta + self.kept["error"][job.client]
        carried = codec.carry(delta, self.layout, job.seed, job.compression_rate)
        if feedback:
            self.kept["error"][job.client] = delta - carried
        return carried

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = state["kept"]
