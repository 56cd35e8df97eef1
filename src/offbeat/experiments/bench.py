"""Measurements of offbeat itself."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch

from offbeat.algorithms import ALGORITHMS
from offbeat.engine import DISPATCHES, Arrival, Loop, Simulated, Terms
from offbeat.messages import Job, Update
from offbeat.world import HalfNormal, World


class NoTraining:
    """A trainer that does nothing: what is left is the engine and the server rule."""

    bulk = 256

    def __init__(self, dim: int) -> None:
        self.bytes = 4 * dim
        self.delta = torch.full((dim,), 1e-6)

    def upload_bytes(self, job: Job) -> int:
        return self.bytes

    def download_bytes(self, job: Job) -> int:
        return self.bytes

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        return [Update(j.id, j.client, j.version, self.delta, j.steps, 1, self.bytes) for j in jobs]


def engine(
    algorithm: str = "fedbuff",
    clients: int = 10_000,
    arrivals: int = 100_000,
    concurrency: int = 1_000,
    buffer: int = 10,
    dim: int = 7_850,
) -> dict[str, Any]:
    """Simulate so many arrivals without training.  d = 7,850 is logistic regression on MNIST."""
    rule = ALGORITHMS[algorithm]()
    kind = DISPATCHES[rule.dispatches[0]]
    names = {field.name for field in fields(kind)}
    options = {k: v for k, v in (("concurrency", concurrency), ("buffer", min(buffer, concurrency))) if k in names}
    dispatch, world = kind(**options), World(delay=HalfNormal())
    transport = Simulated(world, NoTraining(dim), seed=0)
    loop = Loop(rule, dispatch, world, transport, clients, lambda _: Terms(10), seed=0)
    started = time.perf_counter()
    rule.start(torch.zeros(dim), clients)
    loop.start()
    seen = 0
    while seen < arrivals:
        seen += isinstance(loop.turn().event, Arrival)
    seconds = time.perf_counter() - started
    return {
        "algorithm": algorithm,
        "clients": clients,
        "concurrency": concurrency,
        "parameters": dim,
        "arrivals": arrivals,
        "versions": rule.version,
        "seconds": seconds,
        "arrivals_per_second": arrivals / seconds,
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
