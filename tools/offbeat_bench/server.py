"""Cost of an arrival for each server rule, compared with a plain copy of the bytes that it has to touch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import torch

from offbeat.algorithms import ALGORITHMS, Algorithm
from offbeat.cache import CACHES, ClientSide, Disk, Quantized, UpdateCache
from offbeat.messages import Job, Update
from offbeat.vectors import empty_hugepages_like
from offbeat_bench import Progress, no_progress


class CopyBenchmark:
    """A plain copy, timed between other measurements to find the bandwidth that the machine reaches.

    Args:
        device: Where to copy.
        megabytes: Size of the copy.
    """

    def __init__(self, device: str, megabytes: int = 256) -> None:
        self.device = device
        self.source = torch.ones(megabytes * 250_000, device=device)
        self.target = torch.zeros_like(self.source)
        self.best = float("inf")

    def measure(self) -> None:
        """Copy once and remember the best time."""
        self.best = min(self.best, _timed(lambda: self.target.copy_(self.source), self.device))

    @property
    def bandwidth(self) -> float:
        """Bytes per second, read and written, of the fastest copy."""
        return 2 * self.source.nbytes / self.best


def _timed(work: Callable[[], object], device: str) -> float:
    """Return the seconds until the device has finished the work."""
    _synchronize(device)
    started = time.perf_counter()
    work()
    _synchronize(device)
    return time.perf_counter() - started


def _synchronize(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def minimum_bytes(cache: UpdateCache | None, dim: int, per_step: int) -> float:
    """Return the bytes that an arrival moves at least, in single precision.

    The update is read, a running sum is read and written, and for its share of the step x is read and the next x
    written. With a cache the client's entry is read, and written where it is not the update's own tensor.

    Args:
        cache: The rule's update cache, if any.
        dim: Number of parameters.
        per_step: Arrivals per step.
    """
    vector = 4 * dim
    entry = 0.0
    if isinstance(cache, Quantized):
        entry = 2 * dim * cache.bits / 8
    elif cache is not None:
        entry = vector * (2 if isinstance(cache, Disk) else 1)
    return vector + 2 * vector + 2 * vector / per_step + entry


def server(
    name: str, cache: str | None, dim: int, clients: int, arrivals: int, buffer: int = 10, device: str = "cpu"
) -> dict[str, Any]:
    """Measure a server rule: microseconds per arrival against those of a copy, and bytes kept for all clients.

    Every update is a separate tensor, created outside the measured time. Buffers of arrivals and copies take turns,
    and the best of each counts, so that other load on the machine disturbs neither.

    Args:
        name: The rule.
        cache: The cache, for rules that have one.
        dim: Number of parameters.
        clients: Number of clients.
        arrivals: Arrivals to measure.
        buffer: Arrivals per step.
        device: Where the server computes.
    """
    kind: Any = ALGORITHMS[name]
    rule = kind(cache=CACHES[cache]()) if cache else kind()
    rule.start(torch.zeros(dim, device=device), clients, participation=lambda _: 1.0)
    like = torch.randn(dim, device=device)
    size = 1 if rule.schedulers[0] == "per-arrival" else buffer

    def batch(first: int) -> float:
        deltas = [empty_hugepages_like(like).copy_(like) for _ in range(buffer)]  # as executors make them
        return _timed(lambda: _arrive(rule, first, deltas, size), device) / buffer

    warm = -(-clients // buffer) * buffer  # every client has an entry when the clock starts
    for first in range(0, warm, buffer):
        batch(first)
    copy, seconds = CopyBenchmark(device), float("inf")
    for first in range(warm, warm + arrivals, buffer):
        seconds = min(seconds, batch(first))
        copy.measure()
    kept: UpdateCache | None = getattr(rule, "cache", None)
    shown = cache or ("quantized" if name == "mf-ca2fl" else "–")
    touched = minimum_bytes(kept, dim, size)
    return {
        "algorithm": name, "cache": shown, "device": device, "parameters": dim, "clients": clients,
        "microseconds_per_arrival": 1e6 * seconds, "bytes_per_arrival": touched,
        "copy_bytes_per_second": copy.bandwidth, "copy_microseconds": 1e6 * touched / copy.bandwidth,
        "copies": seconds * copy.bandwidth / touched, **_sizes(kept, clients),
    }  # fmt: skip


def _arrive(rule: Algorithm, first: int, deltas: Sequence[torch.Tensor], size: int) -> None:
    """Hand over one update per client in turn, with a step after every `size` of them."""
    for n, delta in enumerate(deltas, start=first):
        job = Job(n, n % rule.clients, rule.version, rule.x, 1, n)
        rule.receive(job, Update(n, job.client, job.version, delta, 1, 1, delta.nbytes))
        if (n + 1) % size == 0:
            rule.step()


def _sizes(cache: UpdateCache | None, clients: int) -> dict[str, float]:
    """Return the bytes that stay in RAM, on disk and at the clients."""
    return {
        "cache_bytes": cache.nbytes if cache is not None else 0,
        "cache_bytes_per_client": cache.nbytes / clients if cache is not None else 0,
        "disk_bytes": cache.disk_bytes if isinstance(cache, Disk) else 0,
        "client_bytes": cache.client_bytes if isinstance(cache, ClientSide) else 0,
    }


def servers(
    dim: int,
    clients: int,
    arrivals: int,
    device: str = "cpu",
    only: Sequence[str] = (),
    progress: Progress = no_progress,
) -> Iterator[dict[str, Any]]:
    """Measure every rule that receives updates one by one, with every cache that it supports.

    Args:
        dim: Number of parameters.
        clients: Number of clients.
        arrivals: Arrivals to measure.
        device: Where the server computes.
        only: Names of the rules to measure; all when empty.
        progress: Called before each measurement.
    """
    pairs: list[tuple[str, str | None]] = []
    for name, kind in ALGORITHMS.items():
        if kind().network() is not None or (only and name not in only):
            continue
        takes = "cache" in {field.name for field in fields(kind)}
        caches = [m for m in CACHES if not (m == "client-side" and name == "aced")] if takes else [None]
        pairs += [(name, cache) for cache in caches]
    for number, (name, cache) in enumerate(pairs):
        progress(f"{name}, {cache} cache" if cache else name, number, len(pairs))
        yield server(name, cache, dim, clients, arrivals, device=device)
