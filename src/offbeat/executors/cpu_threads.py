"""Stacks side by side on a CPU: a thread for each core, whose operations are not shared with others.

Threads that share an operation wait for each other at its end, by spinning: alone on the machine that is fast, but a
second run beside it makes both of them up to fifty times slower.  Threads with a stack each wait for nobody.  They take
turns with Python's own work, so this pays where operations are long (`worth`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import torch

from offbeat.client.training import Plan, Trained, WorkItem

# Multiplications of a stack's step, forwards.  Measured on two cores with one such stack on each: 5·10⁶ gain nothing,
# 7·10⁶ a tenth (an MLP) to a half (a linear model).
LONG = 7_000_000

LocalWork = Callable[[Sequence[WorkItem], Plan], Iterable[Trained]]


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_count(tasks: int, rows: int, multiplications: int) -> int:
    """How many lanes, for so many tasks in stacks of so many rows, with so many multiplications a row and step."""
    enough = max(1, -(-LONG // max(1, multiplications)))  # rows that make a step long
    return max(1, min(cores(), tasks // enough)) if enough <= rows else 1


class StackThreads:
    """As many threads as there are trainers; each stack is trained by one that is free."""

    def __init__(self, trainers: Sequence[LocalWork]) -> None:
        self._free: SimpleQueue[LocalWork] = SimpleQueue()
        for trainer in trainers:
            self._free.put(trainer)
        self._threads = ThreadPoolExecutor(len(trainers), initializer=torch.set_num_threads, initargs=(1,))

    def train(self, orders: Iterable[tuple[Sequence[WorkItem], Plan]]) -> Iterator[list[Trained]]:
        """The result of every order, in their order."""
        futures = [self._threads.submit(self._train, *order) for order in orders]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _train(self, items: Sequence[WorkItem], plan: Plan) -> list[Trained]:
        trainer = self._free.get()
        try:
            return list(trainer(items, plan))
        finally:
            self._free.put(trainer)
