"""An executor does the local work of many jobs."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.clients import ClientRule, State
from offbeat.engine.work import Work
from offbeat.errors import DivergenceError
from offbeat.messages import Job, Update
from offbeat.vector import warm_up_malloc

BULK_BYTES = 1 << 30  # of parameters in one stack
SMALL = 200_000  # parameters

Task = tuple[Work, Job]
Outcome = Update | DivergenceError
Plan = tuple[NDArray[np.int64], NDArray[np.int64]]  # batches (most steps, n, B), how many of each count (most steps, n)
Trained = tuple[bool, Tensor, State, State]  # whether Δ is finite, Δ, what is sent beside it, what the client keeps


@dataclass(frozen=True, slots=True)
class Piece:
    """A job with all that its training needs of its run: with the model and the data, any process can do it."""

    rule: ClientRule
    job: Job
    kept: State

    @classmethod
    def of(cls, task: Task) -> Piece:
        work, job = task
        return cls(work.rule, job, work.kept_by(job))


class Executor(ABC):
    """Trains for one run, or for several that share a model, its data and a device: jobs of all of them at once."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.peer_bytes = 0  # that clients have sent to each other
        self.bulk = max(1, min(256, BULK_BYTES // (4 * max(1, work.layout.dim))))
        self.sample = self.bulk  # jobs that are enough to tell how fast it is
        self.compiled = False
        warm_up_malloc()

    def upload_bytes(self, job: Job) -> int:
        return self.work.upload_bytes(job)

    def download_bytes(self, job: Job) -> int:
        return self.work.download_bytes(job)

    def state_dict(self) -> dict[str, Any]:
        return self.work.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.work.load_state_dict(state)

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        """The update of every job, in the order of the jobs; one that diverges stops the run."""
        updates = []
        for outcome in self.train_all([(self.work, job) for job in jobs]):
            if isinstance(outcome, DivergenceError):
                raise outcome
            updates.append(outcome)
        return updates

    @abstractmethod
    def train_all(self, tasks: Sequence[Task]) -> list[Outcome]:
        """What becomes of every task, in their order."""

    def close(self) -> None:  # noqa: B027 — most have nothing to do
        """Let go of whatever lives outside of this object."""


def outcome(task: Task, finite: bool, delta: Tensor, sent: State, kept: State) -> Outcome:
    """The update, or the error where the result is not finite."""
    work, job = task
    return work.update(job, delta, sent, kept) if finite else work.diverged(job)


def examples(tasks: Sequence[Task]) -> int:
    """How many pass through the model."""
    return sum(job.steps * min(work.rule.batch_size, work.data.size(job.client)) for work, job in tasks)


@contextlib.contextmanager
def threads(work: Work) -> Iterator[None]:
    """One thread for a small model on a CPU, unless the user has set a number.

    Its operations are too short to be shared.  Two threads gain nothing then (measured: 3,800 against 3,450 steps a
    second for a small MLP), and with a second run beside this one they wait for each other: 50 instead of 3,100.
    """
    before = torch.get_num_threads()
    if work.device.type == "cpu" and work.layout.dim < SMALL and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def replayable(seed: int, device: torch.device) -> Iterator[None]:
    """Layers such as dropout draw from torch's global generator: seed it here, and give it back as it was."""
    gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if gpu else []):
        # Not torch.manual_seed, which notes the stack of calls for every kind of device that is not started yet.
        torch.default_generator.manual_seed(seed >> 1)
        if gpu:
            torch.cuda.manual_seed(seed >> 1)
        yield


@contextlib.contextmanager
def arithmetic(work: Work) -> Iterator[None]:
    """Matrix products and convolutions on a GPU in full single precision, or with inputs rounded to 10 bits (TF32).

    Convolutions by algorithms that give the same bytes every time.
    """
    if work.device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic
    matmul.allow_tf32 = cudnn.allow_tf32 = work.precision != "float32"
    cudnn.deterministic = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = before
