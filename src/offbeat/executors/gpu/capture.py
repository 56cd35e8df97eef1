"""Capture of work on a GPU as a CUDA graph."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

ALIGN = 64  # numbers to which a row is padded


def captured(work: Callable[[], None], stream: Any, pool: Any, *, first: bool) -> Any:
    """Run some work twice, capture it, and return the graph; random numbers that it draws are not used up.

    Args:
        work: The work, on memory at fixed addresses.
        stream: The stream of the capture, on which it should also be replayed: cuBLAS has one workspace per stream.
        pool: The memory pool of the graph.
        first: Whether this is the first graph of the pool.
    """
    stream.wait_stream(torch.cuda.current_stream())
    # A resumed run captures at another time than an uninterrupted one, and has to draw the same numbers.
    with torch.random.fork_rng(devices=[torch.cuda.current_device()]):
        with torch.cuda.stream(stream):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
    if first:  # return the memory of the work above, which the graph's pool cannot use
        torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    # Not `torch.cuda.graph`, which collects garbage first: 0.17 seconds, a dozen times.
    with _garbage_collection_paused(), torch.cuda.stream(stream):
        graph.capture_begin(pool=pool)
        try:
            work()
        finally:
            graph.capture_end()
    return graph


def aligned(like: Tensor, rows: int) -> Tensor:
    """Return zeros (rows, d) with rows aligned to 256 bytes, which makes matrix products on them faster."""
    width = like.shape[1]
    return like.new_zeros((rows, -(-width // ALIGN) * ALIGN))[:, :width]


@contextlib.contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Pause the garbage collector: collecting an old program during a capture would invalidate the capture."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
