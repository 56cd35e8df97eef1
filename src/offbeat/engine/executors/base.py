"""An executor does the local work of many jobs."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from offbeat.engine.work import Work
from offbeat.messages import Job, Update

BULK_BYTES = 1 << 30  # of parameters in one stack
SMALL = 200_000  # parameters


class Executor(ABC):
    def __init__(self, work: Work) -> None:
        self.work = work
        self.peer_bytes = 0  # that clients have sent to each other
        self.bulk = max(1, min(256, BULK_BYTES // (4 * max(1, work.layout.dim))))

    def upload_bytes(self, job: Job) -> int:
        return self.work.upload_bytes(job)

    def download_bytes(self, job: Job) -> int:
        return self.work.download_bytes(job)

    def state_dict(self) -> dict[str, Any]:
        return self.work.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.work.load_state_dict(state)

    @abstractmethod
    def train(self, jobs: Sequence[Job]) -> list[Update]:
        """The update of every job, in the order of the jobs."""


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
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed >> 1)
        yield
