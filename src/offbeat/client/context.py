"""The training context: model, data, local rule and device of the clients of one run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offbeat.client.batches import plans
from offbeat.client.personalization import Personalization, Split
from offbeat.client.rules import ClientRule, head_first
from offbeat.data import Augment, FederatedData
from offbeat.errors import ConfigError, DivergenceError
from offbeat.messages import Job
from offbeat.random import stream
from offbeat.server.extensions import BUFFERS
from offbeat.tasks import Classification, Task
from offbeat.trees import Tree, call, map_tensors
from offbeat.vectors import copied, fixed_fingerprint

Precision = Literal["float32", "tf32", "bfloat16"]


class TrainingContext:
    """Everything that local training reads and never changes, apart from the module's scratch weights.

    The data stays on the device as it is stored and is gathered by index; runs on the same data share it.

    Args:
        module: The model; its parameters serve as scratch space.
        data: The data set and its partition among clients.
        rule: The local training rule.
        device: Where training happens.
        precision: Precision of matrix products and convolutions on a GPU.
        augment: Augmentation of training images, if any.
        task: What is learned; classification when left out.
        personalization: What stays on the clients; nothing when left out.

    Attributes:
        split: What travels and what stays on the client.
        layout: Layout of the vector that a client trains: x, followed by the client's personal part.
        buffers: Layout of the running statistics in training.
        rule: The local training rule of a job.
    """

    def __init__(
        self,
        module: nn.Module,
        data: FederatedData,
        rule: ClientRule,
        device: torch.device,
        *,
        precision: Precision = "tf32",
        augment: Augment | None = None,
        task: Task | None = None,
        personalization: Personalization | None = None,
    ) -> None:
        self.module = module.to(device)
        self.data, self.device = data, device
        self.precision, self.augment, self.task = precision, augment, task or Classification()
        self.x, self.y = data.dataset.on(device)
        self.personalization = personalization or Personalization()
        statistics = _mutable_buffers(self.module, self.first_inputs(2))
        try:
            self.split = Split(self.module, statistics, self.personalization)
        except ConfigError as error:
            raise error.within("personalization") from None
        self.layout, self.buffers = self.split.trained, self.split.buffers
        self.rule = head_first(rule, self.personalization.head_steps, self.split.shared.dim)

    def steps(self, client: int) -> int:
        """Return the number of local steps that the rule prescribes for a client's data."""
        return self.rule.local_steps(self.data.size(client))

    @functools.cached_property
    def fixed_fingerprint(self) -> str:
        """A hash of everything in the module that is not part of x: frozen parameters and constant buffers."""
        return fixed_fingerprint(self.module, (*self.layout.names, *self.buffers.names))

    def received_buffers(self, extra: dict[str, Tensor]) -> Tensor | None:
        """Take the running statistics (…, b) out of what clients received, as their modules store them.

        A module counts its batches in integers; the mean of several counters need not be one.
        """
        buffers = extra.pop(BUFFERS, None)
        if buffers is None or not self._integer_buffers.any():
            return buffers
        return torch.where(self._integer_buffers, buffers.trunc(), buffers)

    @functools.cached_property
    def _integer_buffers(self) -> Tensor:
        """Which entries of the vector of buffers are integers in the module."""
        kinds = dict(self.module.named_buffers())
        whole = [not kinds[name].is_floating_point() for name in self.buffers.names]
        sizes = torch.tensor(self.buffers.sizes, device=self.device)
        return torch.tensor(whole, device=self.device).repeat_interleave(sizes)

    def check_batches(self) -> None:
        """Check that no client has a batch with a single example if the model cannot be trained on one.

        Raises:
            ConfigError: A client has; the message names the client and the remedies.
        """
        if not self._needs_pairs():
            return
        rule, sizes = self.rule, np.asarray(self.data.sizes)
        whole = (sizes >= rule.examples_per_step) & rule.drop_last
        last = np.where(whole, 0, sizes % rule.examples_per_step)
        alone = np.flatnonzero((last % rule.batch_size == 1) | (rule.batch_size == 1))
        if len(alone):
            raise ConfigError(
                f"client {alone[0]} has a batch of one example, on which BatchNorm cannot be trained: set "
                "client.drop_last = true or another client.batch_size, and give every client two examples",
                key="client.batch_size",
            )

    def _needs_pairs(self) -> bool:
        """Return whether a BatchNorm layer refuses a single example, as it does for vectors."""
        if not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in self.module.modules()):
            return False
        try:
            call(copied(self.module).train(), self.first_inputs(1))
        except ValueError:
            return True
        return False

    def plan(self, job: Job) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return a job's batches (steps, B) and the number of valid examples in each.

        An example is an index into the data set or, with augmentation, a row of its index and its random draws.
        """
        batches, counts = self.plans([job])
        return batches[:, 0], counts[:, 0]

    def plans(self, jobs: Sequence[Job]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the batches of many jobs (most steps, jobs, B) and their valid counts (most steps, jobs)."""
        sizes = [self.data.size(job.client) for job in jobs]
        steps, seeds = [job.steps for job in jobs], [job.seed for job in jobs]
        positions, counts = plans(sizes, self.rule.examples_per_step, steps, seeds, drop_last=self.rule.drop_last)
        batches = self.data.at([job.client for job in jobs], positions)
        return batches if self.augment is None else self._augmented(self.augment, jobs, sizes, batches), counts

    def _augmented(
        self, augment: Augment, jobs: Sequence[Job], sizes: Sequence[int], batches: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Append each example's random draws, taken from the job's own stream, whatever else is in the stack."""
        draws_per_job = [
            augment.draw(stream(job.seed, "augment"), (job.steps, min(self.rule.examples_per_step, size)))
            for job, size in zip(jobs, sizes, strict=True)
        ]
        examples = np.zeros((*batches.shape, 1 + draws_per_job[0].shape[-1]), dtype=np.int64)
        examples[..., 0] = batches
        for row, draws in enumerate(draws_per_job):
            examples[: draws.shape[0], row, : draws.shape[1], 1:] = draws
        return examples

    def first_inputs(self, count: int) -> Tree:
        """Return the model inputs for the first training examples, repeated if there are fewer."""
        return self.inputs_at(torch.arange(count, device=self.device).remainder(len(self.data.dataset)))

    def read(self, index: Tensor, seed: int, *, test: bool = False) -> tuple[Tree, Tree]:
        """Read examples that are not in memory, and return their inputs and labels on the device."""
        reader = self.data.dataset.reader
        assert reader is not None
        inputs, labels = reader.read(index.tolist(), seed, test=test)
        return map_tensors(lambda t: t.to(self.device), inputs), map_tensors(lambda t: t.to(self.device), labels)

    def examples(self, batch: Tensor, seed: int) -> tuple[Tree, Tree]:
        """Return the inputs and labels for one batch of a plan; `seed` is that of random transformations on reading."""
        if self.data.dataset.reader is not None:
            return self.read(batch, seed)
        return self.inputs(batch), self.labels(batch)

    def inputs_at(self, index: Tensor) -> Tree:
        """Return the model inputs for examples by their index in the data set, without augmentation."""
        if self.data.dataset.reader is not None:
            return self.read(index, 0)[0]
        return self.data.dataset.prepare(map_tensors(lambda x: _gather(x, index), self.x))

    def inputs(self, batch: Tensor) -> Tree:
        """Return the model inputs for one batch of a plan."""
        if self.augment is None:
            return self.inputs_at(batch)
        return self.data.dataset.prepare(self.augment.apply(_gather(self.x, batch[..., 0]), batch[..., 1:]))

    def labels(self, batch: Tensor) -> Tree:
        """Return the labels for one batch of a plan."""
        return self.labels_at(batch if self.augment is None else batch[..., 0])

    def labels_at(self, index: Tensor) -> Tree:
        """Return the labels for examples by their index in the data set."""
        if self.data.dataset.reader is not None:
            return self.read(index, 0)[1]
        return self.data.dataset.prepare_labels(map_tensors(lambda y: _gather(y, index), self.y))

    def to_memory_format(self, images: Tree) -> Tree:
        """Return a batch (B, …) in the memory format in which the model runs fastest.

        On a CPU, convolutions and pooling are several times faster on channels-last images.
        """
        return images.contiguous(memory_format=torch.channels_last) if self._channels_last else images

    @functools.cached_property
    def _channels_last(self) -> bool:
        """Whether the model convolves on a CPU and computes the same on channels-last images.

        A model that takes a `view` of its input fails on them and keeps the default format.
        """
        convolves = any(isinstance(layer, nn.Conv2d) for layer in self.module.modules())
        if self.device.type != "cpu" or not convolves or not isinstance(self.x, Tensor) or self.x.ndim != 4:
            return False
        module, images = copied(self.module).eval(), self.first_inputs(2)
        with torch.no_grad():
            expected = module(images)
            try:
                outputs = module(images.contiguous(memory_format=torch.channels_last))
            except RuntimeError:
                return False
        return isinstance(outputs, Tensor) and torch.allclose(outputs, expected, rtol=1e-3, atol=1e-4)

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context manager for a forward pass: bfloat16 on a GPU where that is requested."""
        if self.precision == "bfloat16" and self.device.type == "cuda":
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()

    def divergence(self, job: Job) -> DivergenceError:
        """Return the error for a job whose result is not finite."""
        return DivergenceError(
            f"client {job.client} diverged while training from version {job.version}: its update is not "
            f"finite. A smaller client.lr (now {self.rule.lr:g}) or algorithm.eta usually helps."
        )


def _gather(x: Tensor, index: Tensor) -> Tensor:
    """Return x[index], copying whole examples; plain indexing copies number by number on a CPU."""
    if index.ndim == 1:
        return x.index_select(0, index)
    return x.index_select(0, index.flatten()).view(*index.shape, *x.shape[1:])


def _mutable_buffers(module: nn.Module, inputs: Tree) -> list[str]:
    """Return the names of the buffers that a training forward pass changes, such as running statistics."""
    if not any(True for _ in module.buffers()):
        return []
    trained = copied(module).train()
    device = next(module.buffers()).device
    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        call(trained, inputs)
    before = dict(module.named_buffers())
    return [name for name, buffer in trained.named_buffers() if not torch.equal(buffer, before[name])]
