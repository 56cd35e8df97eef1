"""Communication topologies as doubly stochastic mixing matrices W.

ρ = ‖W − 11ᵀ/n‖₂ measures how far a matrix is from full averaging.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import ConfigError
from offbeat.options import Options, PositiveInt
from offbeat.random import stream

Matrix = NDArray[np.float64]


def rho(w: Matrix) -> float:
    """Return ‖W − 11ᵀ/n‖₂, which is 0 for full averaging and near 1 for a long ring."""
    return float(np.linalg.norm(w - np.full_like(w, 1 / len(w)), ord=2))


def check(w: Matrix) -> Matrix:
    """Return the matrix, or raise a `ConfigError` if it is not doubly stochastic."""
    if w.ndim != 2 or w.shape[0] != w.shape[1]:
        raise ConfigError(f"shape {w.shape} is not square: give n rows of n numbers", key="matrix")
    if (w < 0).any() or not np.allclose(w.sum(axis=0), 1) or not np.allclose(w.sum(axis=1), 1):
        raise ConfigError(
            "not doubly stochastic: all entries must be ≥ 0, and every row and column must sum to 1", key="matrix"
        )
    return w


class Topology(Options, ABC):
    """Interface for topologies."""

    @abstractmethod
    def matrix(self, n: int, seed: int) -> Matrix:
        """Return the mixing matrix W.

        Args:
            n: The number of clients.
            seed: The seed of a random topology.
        """


@dataclass(kw_only=True, frozen=True)
class Ring(Topology):
    """A ring: weight 1/3 for a client and each of its two neighbors; ρ = 0.995 for n = 50, 0.873 for n = 10."""

    def matrix(self, n: int, seed: int) -> Matrix:
        """Return the matrix of a ring of n clients."""
        if n < 3:
            return np.full((n, n), 1 / n)
        eye = np.eye(n)
        return (eye + np.roll(eye, 1, axis=1) + np.roll(eye, -1, axis=1)) / 3


@dataclass(kw_only=True, frozen=True)
class Complete(Topology):
    """A complete graph with weights 1/n: ρ = 0."""

    def matrix(self, n: int, seed: int) -> Matrix:
        """Return the matrix with all entries 1/n."""
        return np.full((n, n), 1 / n)


@dataclass(kw_only=True, frozen=True)
class UnbalancedComplete(Topology):
    """A complete graph with unequal weights: a random symmetric positive matrix, scaled to be doubly stochastic."""

    def matrix(self, n: int, seed: int) -> Matrix:
        """Return a random matrix, scaled by Sinkhorn-Knopp iterations."""
        raw = stream(seed, "topology").random((n, n)) ** 2 + 1e-3
        w = raw + raw.T
        for _ in range(1000):  # scale rows and columns alike, so that the matrix stays symmetric
            scale = 1 / np.sqrt(w.sum(axis=1))
            w = w * scale[:, None] * scale[None, :]
        return w


@dataclass(kw_only=True, frozen=True)
class RandomRegular(Topology):
    """The union of `degree`/2 random cycles through all clients: weight 1/(degree + 1) for a client and each edge."""

    degree: PositiveInt = 4
    """Number of neighbors per client; even."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.degree % 2:
            raise ConfigError(
                f"{self.degree} is odd: use an even number, because each cycle gives a client two neighbors",
                key="degree",
            )

    def matrix(self, n: int, seed: int) -> Matrix:
        """Return the matrix of random cycles."""
        rng, w = stream(seed, "topology"), np.eye(n)
        for _ in range(self.degree // 2):
            order = rng.permutation(n)
            step = np.zeros((n, n))
            step[order, np.roll(order, -1)] = 1
            w += step + step.T
        return w / (self.degree + 1)


@dataclass(kw_only=True, frozen=True)
class Torus(Topology):
    """A grid, as square as n allows, that wraps around: weight 1/5 for a client and each of its four neighbors."""

    def matrix(self, n: int, seed: int) -> Matrix:
        """Return the matrix of a torus of n clients."""
        rows = next(r for r in range(math.isqrt(n), 0, -1) if n % r == 0)
        grid = np.arange(n).reshape(rows, -1)
        w = np.eye(n)
        for axis in (0, 1):
            for shift in (1, -1):
                w[grid.ravel(), np.roll(grid, shift, axis=axis).ravel()] += 1
        return w / 5


@dataclass(kw_only=True, frozen=True)
class Given(Topology):
    """A user-defined matrix, which must be doubly stochastic."""

    rows: tuple[tuple[float, ...], ...] = ()
    """W, one row per client."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({len(row) for row in self.rows}) != 1:
            raise ConfigError("give W as rows of equal length", key="rows")
        check(np.array(self.rows, dtype=float))

    def matrix(self, n: int, seed: int) -> Matrix:
        """Return the given matrix."""
        if len(self.rows) != n:
            raise ConfigError(f"{len(self.rows)} rows for {n} clients: give one row per client", key="rows")
        return np.array(self.rows, dtype=float)


TOPOLOGIES: dict[str, type[Topology]] = {
    "ring": Ring,
    "complete": Complete,
    "unbalanced-complete": UnbalancedComplete,
    "random-regular": RandomRegular,
    "torus": Torus,
    "given": Given,
}
