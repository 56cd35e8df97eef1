"""Examples that are read when they are needed, from a `torch.utils.data.Dataset`.

For data that does not fit into memory, or that a data set transforms at random on every access. What a random
transformation draws depends only on the job and the step, so a run can be repeated and resumed bit for bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from offbeat.errors import DataError, first_line
from offbeat.trees import Tree, tensors

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads examples of a training and a test set.

    Args:
        train: A map-style data set of (input, label) pairs, or of whatever `collate` accepts.
        test: A data set of the same kind, or None.
        collate: Turns a list of examples into (inputs, labels); `torch.utils.data.default_collate` when left out.
    """

    train: Any
    test: Any = None
    collate: Collate = default_collate

    def read(self, index: Sequence[int], seed: int, *, test: bool = False) -> tuple[Tree, Tree]:
        """Return the inputs and labels of some examples.

        Args:
            index: Their positions.
            seed: Seed of random transformations.
            test: Whether the positions are those of the test set.

        Raises:
            DataError: An example cannot be read, or `collate` does not return inputs and labels.
        """
        source = self.test if test else self.train
        with seeded(seed):
            try:
                batch = self.collate([source[i] for i in index])
            except Exception as error:  # a user's data set may raise anything
                raise DataError(f"examples cannot be read: {type(error).__name__}: {first_line(error)}") from error
        return _pair(batch)

    def is_random(self) -> bool:
        """Return whether reading an example again gives something else."""
        first, second = (self.read([0], seed) for seed in (1, 2))
        same = [torch.equal(a, b) for a, b in zip(tensors(first), tensors(second), strict=True)]
        return not all(same)


def _pair(batch: Any) -> tuple[Tree, Tree]:
    """Split a batch into inputs and labels: a pair, or a mapping with `labels`, as Hugging Face data sets return."""
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    if hasattr(batch, "keys"):
        names = [name for name in ("labels", "label") if name in batch]
        if names:
            return {name: batch[name] for name in batch if name != names[0]}, batch[names[0]]
    raise DataError(
        f"a batch is {type(batch).__name__}; expected (inputs, labels), or a dict with 'labels'; pass collate=…"
    )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators of Python, NumPy and torch, and restore them afterwards."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 — transforms use it
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(seed >> 1)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])
