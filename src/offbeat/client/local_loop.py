"""What a client rule with a training loop of its own works with: the module, the batches and the job."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offbeat.client.batches import forward_slices, read_seed
from offbeat.client.context import TrainingContext
from offbeat.client.rules import ClientRule, State
from offbeat.errors import ConfigError
from offbeat.messages import Job
from offbeat.server.extensions import BUFFERS
from offbeat.tasks.base import in_dtype
from offbeat.trees import Tree, call
from offbeat.vectors import Layout


class LocalJob:
    """A job as a rule's own loop sees it.

    Attributes:
        client: The client.
        version: The version of the pulled model.
        steps: The number of local steps that the server requests, one per batch.
        lr: The learning rate of this job: the rule's, times the factor of its schedule.
        seed: Determines everything random about the job; torch, NumPy and Python are already seeded with it.
        x: The pulled model as one vector, which must not be modified.
        extra: The vectors that the server sent along with x.
        state: The client's stored tensors. They are copies, which the loop may modify.

    Args:
        context: The training context.
        rule: The client rule.
        job: The job.
        client_state: The client's stored tensors.
    """

    def __init__(self, context: TrainingContext, rule: ClientRule, job: Job, client_state: State) -> None:
        self.client, self.version, self.steps, self.seed = job.client, job.version, job.steps, job.seed
        self.lr = rule.lr * job.rate
        self.x, self.extra = job.x, job.extra
        self.state: State = {name: value.clone() for name, value in client_state.items()}
        self._context, self._job = context, job

    @functools.cached_property
    def pulled_model(self) -> nn.Module:
        """The pulled model as a second module, frozen and in evaluation mode, as for distillation."""
        return pulled_copy(self._context, self._job).eval().requires_grad_(False)


class Batches:
    """The batches of a job, one per local step. Iterating again yields the same batches.

    Args:
        context: The training context.
        job: The job.
        plan: The examples of each batch and their number.
        batch_size: Examples per forward pass.
    """

    def __init__(
        self, context: TrainingContext, job: Job, plan: tuple[NDArray[np.int64], NDArray[np.int64]], batch_size: int
    ) -> None:
        self._context, self._job, self._plan, self._batch_size = context, job, plan, batch_size
        self._losses: list[Tensor] = []  # of batches, each times its share of the step
        self._shares = Fraction()

    def __len__(self) -> int:
        return len(self._plan[1])

    def __iter__(self) -> Iterator[Batch]:
        for step, (rows, count) in enumerate(zip(*self._plan, strict=True)):
            yield Batch(self, rows[:count], step, 0, int(count))

    @property
    def mean_loss(self) -> float:
        """The mean training loss over the batches so far; NaN if no loss was computed."""
        return float(torch.stack(self._losses).sum()) / float(self._shares) if self._losses else math.nan


class Batch:
    """The examples of one local step, or a part of them; they are read when they are first used.

    Args:
        batches: The job's batches.
        rows: The examples.
        step: Index of the local step.
        first: Position of the first example in the step.
        total: Number of examples of the step.
    """

    def __init__(self, batches: Batches, rows: NDArray[np.int64], step: int, first: int, total: int) -> None:
        self._batches, self._context, self._job = batches, batches._context, batches._job
        self._rows, self._step, self._first, self._total = rows, step, first, total
        self._recorded = False

    def __len__(self) -> int:
        return len(self._rows)

    @functools.cached_property
    def _examples(self) -> tuple[Tree, Tree]:
        index = torch.from_numpy(self._rows).to(self._context.device)
        inputs, labels = self._context.examples(index, read_seed(self._job, self._step, self._first))
        return self._context.to_memory_format(inputs), labels

    @property
    def inputs(self) -> Tree:
        """The model inputs, augmented where the run augments."""
        return self._examples[0]

    @property
    def labels(self) -> Tree:
        """The labels."""
        return self._examples[1]

    def outputs(self, model: nn.Module) -> Any:
        """Return what a model returns for the inputs, in the run's precision; a dict is passed by keyword."""
        with self._context.autocast():
            outputs = call(model, self.inputs)
        return in_dtype(outputs, self._job.x.dtype)

    def loss(self, outputs: Any) -> Tensor:
        """Return the task's loss of each example.

        The first one that depends on parameters is recorded as the training loss of the batch.

        Args:
            outputs: What a model returned for the inputs.
        """
        losses = self._context.task.losses(outputs, self.labels, len(self))
        if losses.requires_grad and not self._recorded:
            self.record(losses)
        return losses

    def record(self, losses: Tensor) -> None:
        """Record the training loss of the batch, for loops that do not use the task's loss.

        Args:
            losses: One loss per example, or their mean.
        """
        losses, self._recorded = losses.detach(), True
        self._batches._losses.append((losses.sum() if losses.ndim else losses * len(self)) / self._total)
        self._batches._shares += Fraction(len(self), self._total)

    def parts(self) -> Iterator[Batch]:
        """Yield the batch in parts of `batch_size` examples; there are several where gradients are accumulated."""
        for part in forward_slices(len(self), self._batches._batch_size):
            yield Batch(self._batches, self._rows[part], self._step, self._first + part.start, self._total)


def pulled_copy(context: TrainingContext, job: Job) -> nn.Module:
    """Return a module with the weights and running statistics of a job, in training mode.

    It is a copy, so that nothing that a loop does to it reaches another job; only frozen parameters are shared.
    """
    frozen = {id(p): p for p in context.module.parameters() if not p.requires_grad}
    module = copy.deepcopy(context.module, frozen)
    context.layout.write(module, job.x)
    if context.buffers.names:
        context.buffers.write(module, job.extra[BUFFERS])
    return module.train()


def weights(module: nn.Module, layout: Layout) -> Tensor:
    """Return the weights that a loop has trained as one vector.

    Raises:
        ConfigError: The module no longer has the model's parameters.
    """
    shapes = {name: p.shape for name, p in module.named_parameters()}
    changed = [name for name, shape in zip(layout.names, layout.shapes, strict=True) if shapes.get(name) != shape]
    if changed:
        raise ConfigError(f"train has replaced the parameter {changed[0]!r}; change its values only", key="client")
    return layout.read(module)


def returned(rule: ClientRule, values: Any, job: Job, client_state: State) -> tuple[State, State]:
    """Return the vectors to send and the client's new state, from what a rule's `train` returned.

    Raises:
        ConfigError: It returned something else than named tensors, or not what the rule declares.
    """
    where = f"{type(rule).__name__}.train"
    values = {} if values is None else values
    if not isinstance(values, Mapping) or not all(isinstance(value, Tensor) for value in values.values()):
        raise ConfigError(f"{where} returned {values!r:.80}; expected None or a dict of tensors", key="client")
    declared = (*rule.sends, *rule.client_state)
    if unknown := [name for name in values if name not in declared]:
        raise ConfigError(f"{where} returned {unknown[0]!r}, which is not in `sends` or `client_state`", key="client")
    if missing := [name for name in rule.sends if name not in values]:
        raise ConfigError(f"{where} did not return {missing[0]!r}, which is in `sends`", key="client")
    own = {name: value.detach().to(job.x.device, copy=True) for name, value in values.items()}
    sent = {name: own[name].to(job.x.dtype) for name in rule.sends}
    for name, value in sent.items():
        if value.shape != job.x.shape:
            raise ConfigError(
                f"{where} returned {name!r} of shape {list(value.shape)}; what is sent is a vector like x, "
                f"{list(job.x.shape)}",
                key="client",
            )
    return sent, client_state | {name: own[name] for name in rule.client_state if name in own}
