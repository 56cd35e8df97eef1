"""FedLuck's objective φ. In NumPy alone: the algorithm minimizes it, and reports draw it without importing torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Grid = NDArray[np.float64]


def phi(
    k: Grid | float, delta: Grid | float, alpha: float, beta: float, period: float, exponent: float = 0.5,
    share: Grid | float | None = None,
) -> Grid:  # fmt: skip
    """Return φ(k, δ) of one device; arrays are broadcast.

    Args:
        k: Local steps.
        delta: Compression rate δ.
        alpha: Seconds per local step.
        beta: Seconds to upload the whole model.
        period: Seconds between two steps of the server.
        exponent: Exponent e of δ in the denominator.
        share: Size of an upload at δ as a share of the whole model's; δ itself when left out, as in the paper.
    """
    k_, d = np.asarray(k, dtype=float), np.asarray(delta, dtype=float)
    seconds = k_ * alpha + (d if share is None else np.asarray(share, dtype=float)) * beta
    return np.asarray(((seconds / period) ** 2 * (2 - d) + 1) / (k_ * d**exponent))
