"""Executors: interchangeable ways to run the local training of many jobs."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from offbeat.client.context import TrainingContext
from offbeat.client.runtime import ClientRuntime
from offbeat.client.training import Trained
from offbeat.errors import DivergenceError
from offbeat.messages import Job, Update
from offbeat.vectors import warm_up_malloc

BULK_BYTES = 1 << 30  # largest total size of the parameters in one stack
SMALL_MODEL = 200_000  # parameters

Task = tuple[ClientRuntime, Job]
TrainingOutcome = Update | DivergenceError  # the result of one task


class Executor(ABC):
    """Trains the jobs of one run, or of several runs that share model, data and device.

    Attributes:
        runtime: The client runtime of the run that owns this executor.
        context: Its training context: model, data and device.
        bulk: Number of jobs that are worth training in one call.
        sample: Number of jobs that suffice to measure the executor's speed.
        compiled: Whether steps are compiled; only possible on a GPU.
        peer_bytes: Bytes that clients have sent to each other.

    Args:
        runtime: The client runtime of the run.
    """

    def __init__(self, runtime: ClientRuntime) -> None:
        self.runtime, self.context = runtime, runtime.context
        self.peer_bytes = 0
        self.bulk = max(1, min(256, BULK_BYTES // (4 * max(1, self.context.layout.dim))))
        self.sample = self.bulk
        self.compiled = False
        warm_up_malloc()

    @property
    def poolable(self) -> bool:
        """Whether the jobs of several runs can be trained together and gain from it."""
        return self.bulk > 1

    def metrics(self) -> dict[str, float]:
        """Return executor-specific figures, for every evaluation's row and for the run's summary."""
        return {}

    def description(self) -> dict[str, Any]:
        """Return executor-specific data for reports, such as the network of a gossip rule."""
        return {}

    def upload_bytes(self, job: Job) -> int:
        """Return the size of a job's update in bytes."""
        return self.runtime.upload_bytes(job)

    def download_bytes(self, job: Job) -> int:
        """Return the size of what a client downloads with a job, in bytes."""
        return self.runtime.download_bytes(job)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint needs."""
        return self.runtime.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.runtime.load_state_dict(state)

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        """Train the jobs of this executor's own run.

        Returns:
            One update per job, in the order of the jobs.

        Raises:
            DivergenceError: A job produced an update that is not finite.
        """
        updates = []
        for outcome in self.train_all([(self.runtime, job) for job in jobs]):
            if isinstance(outcome, DivergenceError):
                raise outcome
            updates.append(outcome)
        return updates

    def train_all(self, tasks: Sequence[Task]) -> list[TrainingOutcome]:
        """Train the tasks and return one outcome per task, in the same order."""
        outcomes = {place: self.outcome(tasks[place], trained) for place, trained in self.local_results(tasks)}
        return [outcomes[place] for place in range(len(tasks))]

    @abstractmethod
    def local_results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Trained]]:
        """Train the tasks and yield their places and results, in any order; no client's state changes."""

    def outcome(self, task: Task, trained: Trained) -> TrainingOutcome:
        """Store the client's new state and return its update, or a `DivergenceError` if Δ is not finite."""
        runtime, job = task
        return runtime.finish(job, trained) if trained.finite else runtime.context.divergence(job)

    def close(self) -> None:  # noqa: B027 — most executors hold no resources
        """Release worker processes, threads and other external resources; the next training acquires them again."""


def examples(tasks: Sequence[Task]) -> int:
    """Return the number of training examples that the tasks pass through the model."""
    return sum(
        job.steps * min(runtime.context.rule.examples_per_step, runtime.context.data.size(job.client))
        for runtime, job in tasks
    )


@contextlib.contextmanager
def threads(context: TrainingContext) -> Iterator[None]:
    """Limit torch to one thread for a small model on a CPU, unless OMP_NUM_THREADS is set.

    The operations of a small model are too short to share among threads. A second thread gains nothing (measured on a
    small MLP: 3,800 steps per second with one thread, 3,450 with two), and next to another run the threads wait for
    each other: 50 steps per second instead of 3,100.
    """
    before = torch.get_num_threads()
    if context.device.type == "cpu" and context.layout.dim < SMALL_MODEL and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def arithmetic(context: TrainingContext) -> Iterator[None]:
    """Set the precision of matrix products and convolutions on a GPU: full float32, or TF32 (10-bit mantissa).

    Convolutions use deterministic algorithms, so that a run can be repeated bit for bit.
    """
    if context.device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic
    matmul.allow_tf32 = cudnn.allow_tf32 = context.precision != "float32"
    cudnn.deterministic = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = before
