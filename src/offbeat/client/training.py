"""Local training of one job with ordinary autograd, the reference for every faster way to train."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.client.batches import forward_slices, read_seed
from offbeat.client.context import TrainingContext
from offbeat.client.local_loop import Batches, LocalJob, pulled_copy, returned, weights
from offbeat.client.local_step import LocalStepper
from offbeat.client.rules import ClientRule, State
from offbeat.data.lazy import seeded
from offbeat.messages import Job
from offbeat.server.extensions import BUFFERS
from offbeat.tasks.base import in_dtype
from offbeat.trees import call

Plan = tuple[NDArray[np.int64], NDArray[np.int64]]  # batches (most steps, n, B), valid examples of each (most steps, n)


class Trained(NamedTuple):
    """The result of local training."""

    finite: bool
    """Whether Δ is finite."""
    delta: Tensor
    extra: State
    """Auxiliary vectors to send."""
    client_state: State
    """The client's new state."""
    loss: float
    """The mean training loss over the local steps."""


@dataclass(frozen=True, slots=True)
class WorkItem:
    """A job with everything that its training needs of its run; any process that has model and data can train it."""

    rule: ClientRule
    job: Job
    client_state: State


def train_job(context: TrainingContext, item: WorkItem, plan: Plan) -> Trained:
    """Train one job from the pulled model to its Δ, with ordinary autograd.

    Args:
        context: Only its model and data are used; whatever belongs to a run is an argument or a result, so that
            another process can call this as well.
        item: The job, its rule and the client's state.
        plan: The job's batches (steps, B) and their valid counts.
    """
    rule, job = item.rule, item.job
    if rule.own_loop:
        return train_in_own_loop(context, item, plan)
    lr = rule.lr * job.rate
    stepper = LocalStepper(rule, context.layout, job.x, rule.begin(job.x, job.extra, item.client_state))
    if context.buffers.names:
        context.buffers.write(context.module, job.extra[BUFFERS])
    losses, lazy = [], context.data.dataset.reader is not None
    with seeded_generators(job.seed, context.device):
        for t, (batch, count) in enumerate(zip(*plan, strict=True)):
            stepper.leaves()
            for part in forward_slices(count, rule.batch_size):
                index = torch.from_numpy(batch[:count][part]).to(context.device)
                seed = read_seed(job, t, part.start) if lazy else 0
                loss = batch_loss(context, stepper.parameters(), index, seed, count)
                stepper.backward(loss)
                losses.append(loss.detach())
            stepper.advance(lr)
    delta, extra, client_state = stepper.delta(), State(), State()
    if rule.sends or rule.client_state:
        y, state = stepper.end()
        extra, client_state = rule.finish(y, job.x, lr, float(job.steps), state)
    if context.buffers.names:
        extra = extra | {BUFFERS: context.buffers.read(context.module)}
    mean_loss = float(torch.stack(losses).sum()) / max(1, job.steps)
    return Trained(bool(torch.isfinite(delta.sum())), delta, extra, client_state, mean_loss)


def train_in_own_loop(context: TrainingContext, item: WorkItem, plan: Plan) -> Trained:
    """Train one job in the loop of its rule, which changes a copy of the module."""
    rule, job = item.rule, item.job
    batches = Batches(context, job, plan, rule.batch_size)
    module = pulled_copy(context, job)
    with seeded(job.seed), seeded_generators(job.seed, context.device):
        values = rule.train(module, batches, LocalJob(context, rule, job, item.client_state))
    extra, client_state = returned(rule, values, job, item.client_state)
    if context.buffers.names:
        extra = extra | {BUFFERS: context.buffers.read(module)}
    delta = weights(module, context.layout) - job.x
    return Trained(bool(torch.isfinite(delta.sum())), delta, extra, client_state, batches.mean_loss)


def batch_loss(context: TrainingContext, parameters: dict[str, Tensor], batch: Tensor, seed: int, count: int) -> Tensor:
    """Return the sum of a batch's losses divided by a count; the parameters are views, so nothing is copied."""
    inputs, labels = context.examples(batch, seed)
    with context.autocast():
        outputs = call(context.module, context.to_memory_format(inputs), parameters)
    outputs = in_dtype(outputs, next(iter(parameters.values())).dtype)
    losses = context.task.losses(outputs, labels, len(batch))
    return losses.mean() if len(batch) == count else losses.sum() / count


@contextlib.contextmanager
def seeded_generators(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators, from which layers such as dropout draw, and restore them afterwards."""
    gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if gpu else []):
        # Not torch.manual_seed, which records the call stack for every kind of device that is not initialized yet.
        torch.default_generator.manual_seed(seed >> 1)
        if gpu:
            torch.cuda.manual_seed(seed >> 1)
        yield
