"""What an arrival costs a server rule, beside a plain copy of the bytes that it must touch."""

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
from offbeat_bench import Tell, silent


class Copy:
    """A plain copy of 256 MB, to be timed between other measurements: what it moves is what can be moved."""

    def __init__(self, device: str, megabytes: int = 256) -> None:
        self.device = device
        self.source = torch.ones(megabytes * 250_000, device=device)
        self.target = torch.zeros_like(self.source)
        self.best = float("inf")

    def again(self) -> None:
        self.best = min(self.best, _timed(lambda: self.target.copy_(self.source), self.device))

    @property
    def bandwidth(self) -> float:
        """Bytes a second, read and written, at the best."""
        return 2 * self.source.nbytes / self.best


def _timed(work: Callable[[], object], device: str) -> float:
    """Seconds until the device has done it."""
    _finish(device)
    started = time.perf_counter()
    work()
    _finish(device)
    return time.perf_counter() - started


def _finish(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def must_touch(cache: UpdateCache | None, dim: int, per_step: int) -> float:
    """Bytes that an arrival moves at the least, in single precision.

    The update is read, a running sum is read and written, and for its share of the step x is read and the next x
    written.  With a memory the client's entry is read; where the new one is not the update itself it is written, too.
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
    """What an arrival costs a server rule: microseconds beside those of a copy, and bytes kept for all clients.

    Every update is a tensor of its own, made while the clock stands.  Buffers of arrivals and copies take turns, and
    the best of each counts: what others do on the machine should trouble neither.
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
    copy, seconds = Copy(device), float("inf")
    for first in range(warm, warm + arrivals, buffer):
        seconds = min(seconds, batch(first))
        copy.again()
    kept: UpdateCache | None = getattr(rule, "cache", None)
    shown = cache or ("quantized" if name == "mf-ca2fl" else "–")
    touched = must_touch(kept, dim, size)
    return {
        "algorithm": name, "cache": shown, "device": device, "parameters": dim, "clients": clients,
        "microseconds_per_arrival": 1e6 * seconds, "bytes_per_arrival": touched,
        "copy_bytes_per_second": copy.bandwidth, "copy_microseconds": 1e6 * touched / copy.bandwidth,
        "copies": seconds * copy.bandwidth / touched, **_kept(kept, clients),
    }  # fmt: skip


def _arrive(rule: Algorithm, first: int, deltas: Sequence[torch.Tensor], size: int) -> None:
    """So many arrivals, one client after the other, and a step after every `size` of them."""
    for n, delta in enumerate(deltas, start=first):
        job = Job(n, n % rule.clients, rule.version, rule.x, 1, n)
        rule.receive(job, Update(n, job.client, job.version, delta, 1, 1, delta.nbytes))
        if (n + 1) % size == 0:
            rule.step()


def _kept(cache: UpdateCache | None, clients: int) -> dict[str, float]:
    """What stays, and where."""
    return {
        "cache_bytes": cache.nbytes if cache is not None else 0,
        "cache_bytes_per_client": cache.nbytes / clients if cache is not None else 0,
        "disk_bytes": cache.disk_bytes if isinstance(cache, Disk) else 0,
        "client_bytes": cache.client_bytes if isinstance(cache, ClientSide) else 0,
    }


def servers(
    dim: int, clients: int, arrivals: int, device: str = "cpu", only: Sequence[str] = (), tell: Tell = silent
) -> Iterator[dict[str, Any]]:
    """Every rule that takes updates one by one, with every memory that it takes; or only those that are named."""
    pairs: list[tuple[str, str | None]] = []
    for name, kind in ALGORITHMS.items():
        if kind().network() is not None or (only and name not in only):
            continue
        takes = "cache" in {field.name for field in fields(kind)}
        caches = [m for m in CACHES if not (m == "client-side" and name == "aced")] if takes else [None]
        pairs += [(name, cache) for cache in caches]
    for number, (name, cache) in enumerate(pairs):
        tell(f"{name}, {cache} memory" if cache else name, number, len(pairs))
        yield server(name, cache, dim, clients, arrivals, device=device)
