"""The batches of a job."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from offbeat.client.rules import steps_per_epoch
from offbeat.messages import Job
from offbeat.random import fold_in, key, random_uint64

Indices = NDArray[np.int64]


def plan(examples: int, batch_size: int, steps: int, seed: int, *, drop_last: bool = False) -> tuple[Indices, Indices]:
    """Return a job's batches: positions (steps, B) in the client's data and the valid count per row (steps,).

    The data is reshuffled for every epoch, and the last batch of an epoch may be short, as with an ordinary data
    loader; with `drop_last` it is dropped, unless it is the only one. Short rows are padded with 0.
    """
    positions, counts = plans([examples], batch_size, [steps], [seed], drop_last=drop_last)
    return positions[:, 0], counts[:, 0]


def plans(
    examples: Sequence[int],
    batch_size: int,
    steps: Sequence[int],
    seeds: Sequence[int],
    *,
    drop_last: bool = False,
) -> tuple[Indices, Indices]:
    """Return the batches of many jobs: positions (most steps, jobs, B) and valid counts (most steps, jobs).

    Jobs with the same number of examples are shuffled together; a shuffle is the sort order of random words.
    """
    sizes = np.asarray(examples)
    positions = np.zeros((max(steps), len(sizes), min(batch_size, int(sizes.max()))), dtype=np.int64)
    counts = np.zeros(positions.shape[:2], dtype=np.int64)
    streams = np.array([key(seed, "batches") for seed in seeds], dtype=np.uint64)
    asked = np.asarray(steps)
    for size in np.unique(sizes):
        jobs = np.flatnonzero(sizes == size)
        width = min(batch_size, int(size))
        per_pass = steps_per_epoch(int(size), width, drop_last)
        passes = -(-int(asked[jobs].max()) // per_pass)
        order = np.zeros((len(jobs), passes, per_pass * width), dtype=np.int64)
        random = random_uint64(streams[jobs], passes * int(size)).reshape(len(jobs), passes, -1)
        used = min(int(size), per_pass * width)
        order[..., :used] = random.argsort(axis=-1)[..., :used]
        rows = order.reshape(len(jobs), -1, width)[:, : asked[jobs].max()]
        count = np.full((passes, per_pass), width)
        count[:, -1] = used - width * (per_pass - 1)
        taken = np.arange(rows.shape[1])[:, None] < asked[jobs]
        positions[: rows.shape[1], jobs, :width] = rows.transpose(1, 0, 2) * taken[..., None]
        counts[: rows.shape[1], jobs] = count.reshape(-1)[: rows.shape[1], None] * taken
    return positions, counts


def forward_slices(examples: int, batch_size: int) -> list[slice]:
    """Return the slices of a local step's examples that pass through the model together."""
    if examples <= batch_size:
        return [slice(0, examples)]
    return [slice(first, min(first + batch_size, examples)) for first in range(0, examples, batch_size)]


def read_seed(job: Job, step: int, first: int = 0) -> int:
    """Return the seed with which the examples of a step are read, from the first one on, where reading is random."""
    seed = fold_in(job.seed, step)
    return fold_in(seed, first) if first else seed
