"""Throughput of the server loop without training, and its memory against the number of clients."""

from __future__ import annotations

import itertools
import multiprocessing
import resource
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from typing import Any

import torch

from offbeat.algorithms import ALGORITHMS
from offbeat.algorithms.workload import Workload
from offbeat.environment import Environment, HalfNormal
from offbeat.messages import Job, Update
from offbeat.scheduling import SCHEDULERS
from offbeat.server.events import Arrival
from offbeat.server.loop import Loop
from offbeat.simulation.transport import SimulatedTransport
from offbeat_bench import Progress, no_progress


class NoTraining:
    """A trainer that does nothing, so that only the loop and the server rule take time.

    Args:
        dim: Number of parameters.
    """

    bulk = 256

    def __init__(self, dim: int) -> None:
        self.bytes = 4 * dim
        self.delta = torch.full((dim,), 1e-6)

    def upload_bytes(self, job: Job) -> int:
        """Return the size of an uncompressed update."""
        return self.bytes

    def download_bytes(self, job: Job) -> int:
        """Return the size of an uncompressed model."""
        return self.bytes

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        """Return the same small update for every job."""
        return [Update(j.id, j.client, j.version, self.delta, j.steps, 1, self.bytes) for j in jobs]


def engine(
    algorithm: str = "fedbuff",
    clients: int = 10_000,
    arrivals: int = 100_000,
    concurrency: int = 1_000,
    buffer: int = 10,
    dim: int = 7_850,
) -> dict[str, Any]:
    """Simulate arrivals without training and measure time and memory.

    Args:
        algorithm: Name of the server rule.
        clients: Number of clients.
        arrivals: Arrivals to simulate.
        concurrency: Clients that work at the same time.
        buffer: Updates per step, for schedulers with a buffer.
        dim: Number of parameters; 7,850 is logistic regression on MNIST.
    """
    started, worked = time.perf_counter(), time.process_time()
    loop = simulation(algorithm, clients, concurrency, buffer, dim)
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
        "versions": loop.algorithm.version,
        "seconds": seconds,
        "processor_seconds": time.process_time() - worked,
        "arrivals_per_second": arrivals / seconds,
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def simulation(algorithm: str, clients: int, concurrency: int, buffer: int, dim: int) -> Loop:
    """Return a loop without training that has sent its first jobs.

    Args:
        algorithm: Name of the server rule.
        clients: Number of clients.
        concurrency: Clients that work at the same time.
        buffer: Updates per step, for schedulers with a buffer.
        dim: Number of parameters.
    """
    rule = ALGORITHMS[algorithm]()
    kind = SCHEDULERS[rule.schedulers[0]]
    names = {field.name for field in fields(kind)}
    options = {k: v for k, v in (("concurrency", concurrency), ("buffer", min(buffer, concurrency))) if k in names}
    environment, workload = Environment(delay=HalfNormal()), Workload(10)
    transport = SimulatedTransport(environment, NoTraining(dim), seed=0)
    loop = Loop(
        algorithm=rule,
        scheduler=kind(**options),
        environment=environment,
        transport=transport,
        clients=clients,
        workload=lambda _: workload,
        seed=0,
    )
    rule.start(torch.zeros(dim), clients)
    loop.start()
    return loop


def engines(
    clients: Sequence[int], algorithm: str = "fedbuff", arrivals: int = 100_000, concurrency: int = 1_000,
    dim: int = 7_850, progress: Progress = no_progress,
) -> list[dict[str, Any]]:  # fmt: skip
    """Call `engine` for several numbers of clients, with equally many of them busy, each in a fresh process.

    The peaks of memory are then comparable: `bytes_per_client` is the cost of each client beyond the previous row.

    Args:
        clients: Numbers of clients.
        algorithm: Name of the server rule.
        arrivals: Arrivals to simulate.
        concurrency: Clients that work at the same time, at most as many as there are in the smallest population.
        dim: Number of parameters.
        progress: Called before each measurement.
    """
    sizes, rows = sorted(set(clients)), []
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as process:
        for number, size in enumerate(sizes):
            progress(f"{algorithm}, {size:,} clients", number, len(sizes))
            busy = min(concurrency, sizes[0])
            rows.append(process.submit(engine, algorithm, size, arrivals, busy, dim=dim).result())
    for before, row in itertools.pairwise(rows):
        megabytes = row["peak_megabytes"] - before["peak_megabytes"]
        row["bytes_per_client"] = megabytes * 2**20 / (row["clients"] - before["clients"])
    return rows
