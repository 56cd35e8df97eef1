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

from offbeat.data.convert import as_inputs, as_labels, scaled, stacked, standard
from offbeat.errors import DataError, first_line
from offbeat.trees import Tree, tensors

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads examples of a training and a test set.

    Args:
        train: A map-style data set of (input, label) pairs, or of whatever `collate` accepts.
        test: A data set of the same kind, or None.
        collate: Turns a list of examples into (inputs, labels); examples of the same shape are stacked when left out.
    """

    train: Any
    test: Any = None
    collate: Collate = stacked

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
                examples = [source[i] for i in index]
            except Exception as error:  # a user's data set may raise anything
                raise DataError(f"examples cannot be read: {type(error).__name__}: {first_line(error)}") from error
            inputs, labels = self.batch(examples)
        return scaled(inputs), standard(labels)

    def batch(self, examples: list[Any]) -> tuple[Tree, Tree]:
        """Return the inputs and labels of examples.

        Raises:
            DataError: `collate` fails, or does not return inputs and labels of so many examples.
        """
        try:
            batch = self.collate(examples)
        except DataError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise DataError(f"collate failed: {type(error).__name__}: {first_line(error)}") from error
        inputs, labels = _pair(batch)
        trees = as_inputs(inputs, "inputs"), as_labels(labels, "labels")
        found = {len(tensor) if tensor.ndim else 0 for tensor in tensors(trees)}
        if found != {len(examples)}:
            raise DataError(
                f"collate returned tensors of length {', '.join(map(str, sorted(found)))} for {len(examples)} "
                "examples: the first dimension of all inputs and labels must be the example"
            )
        return trees

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
