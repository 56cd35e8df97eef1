"""Stacks trained in parallel on a CPU: one thread per core, each with its own stack.

Threads that share an operation wait for each other at its end by spinning. That is fast on an idle machine, but with a
second run on the machine both become up to fifty times slower. Threads with one stack each do not wait for each other.
They compete for Python's interpreter lock, so they pay off only if operations are long (`worker_count`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import torch

from offbeat.client.training import Plan, Trained, WorkItem

# Multiplications in the forward pass of a stack from which threads pay off. Measured on two cores with one stack each:
# 5·10⁶ gain nothing, 7·10⁶ between 10 % (an MLP) and 50 % (a linear model).
LONG_STEP = 7_000_000

LocalWork = Callable[[Sequence[WorkItem], Plan], Iterable[Trained]]


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_count(tasks: int, rows: int, multiplications: int) -> int:
    """Return the number of threads that pay off.

    Args:
        tasks: Number of tasks.
        rows: Maximum number of tasks per stack.
        multiplications: Multiplications per row and step.
    """
    long_enough = max(1, -(-LONG_STEP // max(1, multiplications)))  # rows that make a step long
    return max(1, min(cores(), tasks // long_enough)) if long_enough <= rows else 1


class StackThreads:
    """Threads that train stacks in parallel.

    Args:
        trainers: One trainer per thread; a trainer must not be used by two threads at the same time.
    """

    def __init__(self, trainers: Sequence[LocalWork]) -> None:
        self._free: SimpleQueue[LocalWork] = SimpleQueue()
        for trainer in trainers:
            self._free.put(trainer)
        self._threads = ThreadPoolExecutor(len(trainers), initializer=torch.set_num_threads, initargs=(1,))

    def train(self, stacks: Iterable[tuple[Sequence[WorkItem], Plan]]) -> Iterator[list[Trained]]:
        """Train the stacks and return their results in the same order."""
        futures = [self._threads.submit(self._train, *stack) for stack in stacks]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _train(self, items: Sequence[WorkItem], plan: Plan) -> list[Trained]:
        trainer = self._free.get()
        try:
            return list(trainer(items, plan))
        finally:
            self._free.put(trainer)
