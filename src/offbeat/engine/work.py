"""What clients work on: a model, the data they have, a local rule, a code for what travels."""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offbeat.clients import ClientRule, Halves, ServerHalf, State, Statistics, plans
from offbeat.compression import Compression
from offbeat.data import Augment, Divided
from offbeat.errors import DivergenceError
from offbeat.messages import Job, Update
from offbeat.seeds import key, stream
from offbeat.vector import Layout

Undo = tuple[int, dict[str, Tensor | None]]  # a client's last job, and what it kept before that
Precision = Literal["float32", "tf32", "bfloat16"]


class Work:
    """The data lives on the device as it is stored, and is gathered by index; runs on the same data share it.

    What clients keep between two jobs (control variates, the error of their code) lives here, one row a client that has
    any.  A client keeps it when it has trained; a job that is lost is never trained and changes nothing.  Where an
    update may be lost or refused after that, the next job says so (`Job.taken`), and the client goes back to what it
    kept before: otherwise SCAFFOLD's c would no longer be the mean of the c_i.
    """

    def __init__(
        self,
        module: nn.Module,
        data: Divided,
        rule: ClientRule,
        device: torch.device,
        compression: Compression | None = None,
        precision: Precision = "tf32",
        augment: Augment | None = None,
        forgers: Collection[int] = frozenset(),
    ) -> None:
        self.module = module.to(device)
        self.layout = Layout.of(module)
        self.data, self.rule, self.device = data, rule, device
        self.compression = compression or Compression()
        self.precision, self.augment = precision, augment
        self.forgers = forgers  # clients whose Δ is another when it is sent, and coded only then
        self.x, self.y = data.dataset.on(device)
        self.buffers = Layout.of_buffers(self.module, _changing(self.module, data.dataset.prepare(self.x[:2])))
        self.kept: dict[str, dict[int, Tensor]] = {name: {} for name in (*rule.keeps, "error")}
        self.undo: dict[int, Undo] = {}

    def steps(self, client: int) -> int:
        return self.rule.local_steps(self.data.size(client))

    def upload_bytes(self, job: Job) -> int:
        """What the job's update will cost: the coded update, and what is sent beside it as it is."""
        beside = self.layout.dim * len(self.rule.sends) + self.buffers.dim
        return self.compression.upload.size(self.layout, job.compression_rate) + 4 * beside

    def server_half(self) -> ServerHalf | None:
        """The other end of what clients send beside Δ: of the rule, and of running statistics."""
        halves = [half for half in (self.rule.server(),) if half is not None]
        if self.buffers.names:
            halves.append(Statistics(self.buffers.read(self.module)))
        return Halves(halves) if len(halves) > 1 else next(iter(halves), None)

    def download_bytes(self, job: Job) -> int:
        return self.compression.download.size(self.layout) + sum(t.nbytes for t in job.extra.values())

    def outgoing(self, x: Tensor, version: int) -> Tensor:
        """x as it comes out of the code at the clients."""
        return self.compression.download.carry(x, self.layout, key("download", version))

    def plan(self, job: Job) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Batches (steps, B), and how many examples of each count.

        An example is its index into the data set or, where the data is augmented, a row of it and what is drawn for it.
        """
        batches, counts = self.plans([job])
        return batches[:, 0], counts[:, 0]

    def plans(self, jobs: Sequence[Job]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same for many jobs at once: (most steps, jobs, B) and (most steps, jobs)."""
        sizes = [self.data.size(job.client) for job in jobs]
        positions, counts = plans(sizes, self.rule.batch_size, [job.steps for job in jobs], [job.seed for job in jobs])
        batches = self.data.at([job.client for job in jobs], positions)
        return batches if self.augment is None else self._augmented(self.augment, jobs, sizes, batches), counts

    def _augmented(
        self, augment: Augment, jobs: Sequence[Job], sizes: Sequence[int], batches: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Beside each index what is drawn for it, by the job's own stream: whoever else is in the stack."""
        drawn = [
            augment.draw(stream(job.seed, "augment"), (job.steps, min(self.rule.batch_size, size)))
            for job, size in zip(jobs, sizes, strict=True)
        ]
        examples = np.zeros((*batches.shape, 1 + drawn[0].shape[-1]), dtype=np.int64)
        examples[..., 0] = batches
        for row, draws in enumerate(drawn):
            examples[: draws.shape[0], row, : draws.shape[1], 1:] = draws
        return examples

    def inputs(self, batch: Tensor) -> Tensor:
        """What the model sees of a batch of a plan."""
        if self.augment is None:
            return self.data.dataset.prepare(self._gathered(batch))
        return self.data.dataset.prepare(self.augment.apply(self._gathered(batch[..., 0]), batch[..., 1:]))

    def laid(self, images: Tensor) -> Tensor:
        """A batch (B, …) as the model takes it fastest.

        On a CPU convolutions want an image's colours side by side, and pooling is several times faster on them.
        """
        return images.contiguous(memory_format=torch.channels_last) if self._channels_last else images

    @functools.cached_property
    def _channels_last(self) -> bool:
        """Whether the model has convolutions on a CPU, and computes the same with images that lie so.

        One that takes a `view` of them fails.
        """
        convolves = any(isinstance(layer, nn.Conv2d) for layer in self.module.modules())
        if self.device.type != "cpu" or len(self.data.dataset.shape) != 3 or not convolves:
            return False
        module, images = copy.deepcopy(self.module).eval(), self.data.dataset.prepare(self.x[:2])
        with torch.no_grad():
            expected = module(images)
            try:
                found = module(images.contiguous(memory_format=torch.channels_last))
            except RuntimeError:
                return False
        return torch.allclose(found, expected, rtol=1e-3, atol=1e-4)

    def _gathered(self, index: Tensor) -> Tensor:
        """x[index], which copies number by number on a CPU, where this copies whole examples."""
        return self.x.index_select(0, index.flatten()).view(*index.shape, *self.x.shape[1:])

    def mixed(self) -> torch.autocast:
        """The context of a forward pass: on a GPU in bfloat16 where that is asked for."""
        wanted = self.precision == "bfloat16" and self.device.type == "cuda"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=wanted)

    def labels(self, batch: Tensor) -> Tensor:
        return self.y[batch if self.augment is None else batch[..., 0]]

    def kept_by(self, job: Job) -> State:
        """What the rule finds kept by the job's client."""
        self._recall(job)
        return {name: self.kept[name].get(job.client, torch.zeros_like(job.x)) for name in self.rule.keeps}

    def update(self, job: Job, delta: Tensor, sent: State, kept: State) -> Update:
        """A trained job's result as a message."""
        self._recall(job)
        if job.taken is not None:
            self.undo[job.client] = job.id, {name: rows.get(job.client) for name, rows in self.kept.items()}
        for name, value in kept.items():
            self.kept[name][job.client] = value
        coded = delta if job.client in self.forgers else self.coded(job, delta)
        return Update(
            job=job.id, client=job.client, version=job.version, delta=coded, steps=job.steps,
            examples=self.data.size(job.client), wire_bytes=self.upload_bytes(job), extra=sent,
        )  # fmt: skip

    def _recall(self, job: Job) -> None:
        """Back to what the client kept before its last job, if the server has not taken what came of it."""
        last, before = self.undo.pop(job.client, (job.taken, {}))
        for name, value in before.items() if last != job.taken else ():
            if value is None:
                self.kept[name].pop(job.client, None)
            else:
                self.kept[name][job.client] = value

    def diverged(self, job: Job) -> DivergenceError:
        """What a result that is not finite ends in."""
        return DivergenceError(
            f"client {job.client} diverged while training from version {job.version}: its update is not "
            f"finite.  A smaller client.lr (now {self.rule.lr:g}) or algorithm.eta usually helps."
        )

    def coded(self, job: Job, delta: Tensor) -> Tensor:
        """Δ as it comes out of the code at the server."""
        codec, feedback = self.compression.upload, self.compression.error_feedback
        if feedback and job.client in self.kept["error"]:
            delta = delta + self.kept["error"][job.client]
        carried = codec.carry(delta, self.layout, job.seed, job.compression_rate)
        if feedback:
            self.kept["error"][job.client] = delta - carried
        return carried

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept, "undo": self.undo}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept, self.undo = state["kept"], state["undo"]


def _changing(module: nn.Module, inputs: Tensor) -> list[str]:
    """Names of the buffers that training changes, such as running statistics."""
    if not any(True for _ in module.buffers()):
        return []
    trained = copy.deepcopy(module).train()
    with torch.no_grad(), torch.random.fork_rng(devices=[inputs.device] if inputs.is_cuda else []):
        trained(inputs)
    before = dict(module.named_buffers())
    return [name for name, buffer in trained.named_buffers() if not torch.equal(buffer, before[name])]
