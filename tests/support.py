"""What several tests need."""

from __future__ import annotations

import os
import pathlib
import signal
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from offbeat.experiments.result import Glance, Watch
from offbeat.messages import Job, Update

SHARED = pathlib.Path(__file__).resolve().parents[2] / "shared"


def job(number: int, client: int, version: int, x: Tensor, steps: int = 3, seed: int = 0) -> Job:
    return Job(id=number, client=client, version=version, x=x, steps=steps, seed=seed)


def update(of: Job, delta: Tensor, examples: int = 10) -> Update:
    return Update(
        job=of.id, client=of.client, version=of.version, delta=delta, steps=of.steps, examples=examples, wire_bytes=0
    )


def interrupt_after(version: int) -> Watch:
    """Stops a run as Ctrl-C would, by a real signal, once."""
    sent: list[bool] = []

    def watch(glance: Glance) -> None:
        if glance.tally.version >= version and not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    return watch


class Arrivals:
    """A random history: who arrives, from which version, with which Δ, and after which arrivals the server steps."""

    def __init__(self, seed: int, clients: int = 7, dim: int = 23, count: int = 50, buffer: int | None = None) -> None:
        rng = np.random.default_rng(seed)
        self.clients, self.dim = clients, dim
        self.x0 = rng.standard_normal(dim)
        self.who = [int(c) for c in rng.integers(clients, size=count)]
        self.deltas = rng.standard_normal((count, dim))
        self.examples = [int(n) for n in rng.integers(1, 50, size=count)]
        size = buffer or int(rng.integers(1, 6))
        self.steps_after = [(n + 1) % size == 0 for n in range(count)]
        self.lags = [int(n) for n in rng.integers(0, 6, size=count)]  # how old the pulled version is, at most


class Quadratics:
    """Clients with f_i(x) = ½‖x − c_i‖²: one local "training" is exact, heterogeneity is the spread of the centres."""

    def __init__(self, centres: Tensor, lr: float, steps: int) -> None:
        self.centres = centres
        self.keep = (1 - lr) ** steps  # K steps of gradient descent shrink the distance to c_i by this
        self.bulk = 64

    def upload_bytes(self, job: Job) -> int:
        return 4 * self.centres.shape[1]

    def download_bytes(self, job: Job) -> int:
        return 4 * self.centres.shape[1]

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        return [update(j, (1 - self.keep) * (self.centres[j.client] - j.x)) for j in jobs]

    @property
    def optimum(self) -> Tensor:
        return torch.mean(self.centres, dim=0)


def gone(pid: int) -> bool:
    """Soon ended, if it has not."""
    deadline = time.monotonic() + 10
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not running(pid)


def running(pid: int) -> bool:
    """Not ended; one that has ended, but that nobody has waited for, is state Z."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
