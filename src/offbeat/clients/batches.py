"""Which examples a job trains on, step by step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from offbeat.seeds import stream

Indices = NDArray[np.int64]


def plan(examples: int, batch_size: int, steps: int, seed: int) -> tuple[Indices, Indices]:
    """Positions (steps, B) in a client's data and how many of each row count (steps,); the rest is padding with 0.

    The data is shuffled anew for every pass, and the last batch of a pass may be short, as with an ordinary loader.
    """
    rng = stream(seed, "batches")
    width = min(batch_size, examples)
    per_pass = -(-examples // width)
    passes = -(-steps // per_pass)
    rows = np.zeros((passes, per_pass * width), dtype=np.int64)
    for row in rows:
        row[:examples] = rng.permutation(examples)
    counts = np.full((passes, per_pass), width, dtype=np.int64)
    counts[:, -1] = examples - width * (per_pass - 1)
    return rows.reshape(-1, width)[:steps], counts.reshape(-1)[:steps]
