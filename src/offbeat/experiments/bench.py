"""Measurements of offbeat itself."""

from __future__ import annotations

import itertools
import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from typing import Any

import torch

from offbeat.algorithms import ALGORITHMS
from offbeat.engine import DISPATCHES, Arrival, Loop, Simulated, Terms
from offbeat.memory import MEMORIES
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


def engines(
    clients: Sequence[int], algorithm: str = "fedbuff", arrivals: int = 100_000, concurrency: int = 1_000,
    dim: int = 7_850,
) -> list[dict[str, Any]]:  # fmt: skip
    """The same with different numbers of clients and equally many of them busy, each in a fresh process.

    So the peaks can be compared: `bytes_per_client` is what each client more than in the row before has cost.
    """
    sizes = sorted(set(clients))
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as process:
        rows = [
            process.submit(engine, algorithm, size, arrivals, min(concurrency, sizes[0]), dim=dim).result()
            for size in sizes
        ]
    for before, row in itertools.pairwise(rows):
        megabytes = row["peak_megabytes"] - before["peak_megabytes"]
        row["bytes_per_client"] = megabytes * 2**20 / (row["clients"] - before["clients"])
    return rows


def copy_bandwidth(megabytes: int = 256) -> float:
    """Bytes a second that this machine reads and writes in a plain copy."""
    source = torch.ones(megabytes * 250_000)
    target = torch.empty_like(source)
    best = min(_timed(lambda: target.copy_(source)) for _ in range(5))
    return 2 * source.nbytes / best


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def server(name: str, memory: str | None, dim: int, clients: int, arrivals: int, buffer: int = 10) -> dict[str, Any]:
    """What an arrival costs a server rule: microseconds, and bytes kept for all clients together."""
    kind: Any = ALGORITHMS[name]
    rule = kind(memory=MEMORIES[memory]()) if memory else kind()
    rule.start(torch.zeros(dim), clients, participation=lambda _: 1.0)
    deltas = [torch.randn(dim) for _ in range(4)]
    size = 1 if rule.dispatches[0] == "per-arrival" else buffer

    def arrive(n: int) -> None:
        job = Job(n, n % clients, rule.version, rule.x, 1, n)
        rule.receive(job, Update(n, job.client, job.version, deltas[n % 4], 1, 1, 4 * dim))
        if (n + 1) % size == 0:
            rule.step()

    for n in range(clients):  # every client has an entry when the clock starts
        arrive(n)
    started = time.perf_counter()
    for n in range(clients, clients + arrivals):
        arrive(n)
    seconds = time.perf_counter() - started
    kept = rule.memory.nbytes if hasattr(rule, "memory") else 0
    return {
        "algorithm": name,
        "memory": memory or ("quantised" if name == "mf-ca2fl" else "–"),
        "parameters": dim,
        "clients": clients,
        "microseconds_per_arrival": 1e6 * seconds / arrivals,
        "copies": seconds / arrivals * copy_bandwidth() / (8 * dim),
        "memory_bytes": kept,
        "memory_bytes_per_client": kept / clients,
        "disk_bytes": rule.memory.disk_bytes if memory == "disk" else 0,
        "client_bytes": rule.memory.client_bytes if memory == "held" else 0,
    }


def servers(dim: int, clients: int, arrivals: int) -> list[dict[str, Any]]:
    """Every rule that takes updates one by one, with every memory that it takes."""
    rows = []
    for name, kind in ALGORITHMS.items():
        if kind().network() is not None:
            continue
        takes = "memory" in {field.name for field in fields(kind)}
        memories = [m for m in MEMORIES if not (m == "held" and name == "aced")] if takes else [None]
        rows += [server(name, memory, dim, clients, arrivals) for memory in memories]
    return rows
