"""Who talks to whom: doubly stochastic mixing matrices W, and ρ = ‖W − 11ᵀ/n‖₂, how far they are from full
averaging."""

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
    """‖W − 11ᵀ/n‖₂: 0 for full averaging, near 1 for a long ring."""
    return float(np.linalg.norm(w - np.full_like(w, 1 / len(w)), ord=2))


def check(w: Matrix) -> Matrix:
    """Refuse what is not doubly stochastic."""
    if w.ndim != 2 or w.shape[0] != w.shape[1]:
        raise ConfigError(f"a square matrix expected, got shape {w.shape}", key="matrix")
    if (w < 0).any() or not np.allclose(w.sum(axis=0), 1) or not np.allclose(w.sum(axis=1), 1):
        raise ConfigError(
            "not doubly stochastic: entries ≥ 0, every row and every column must sum to one", key="matrix"
        )
    return w


class Topology(Options, ABC):
    @abstractmethod
    def matrix(self, n: int, seed: int) -> Matrix:
        """W for n clients; what is random about it follows from the seed."""


@dataclass(kw_only=True, frozen=True)
class Ring(Topology):
    """Each client and its two neighbours, a third each: ρ = 0.995 for n = 50, 0.873 for n = 10."""

    def matrix(self, n: int, seed: int) -> Matrix:
        if n < 3:
            return np.full((n, n), 1 / n)
        eye = np.eye(n)
        return (eye + np.roll(eye, 1, axis=1) + np.roll(eye, -1, axis=1)) / 3


@dataclass(kw_only=True, frozen=True)
class Complete(Topology):
    """Everybody with everybody, 1/n: ρ = 0."""

    def matrix(self, n: int, seed: int) -> Matrix:
        return np.full((n, n), 1 / n)


@dataclass(kw_only=True, frozen=True)
class UnbalancedComplete(Topology):
    """Everybody with everybody, with unequal weights: a random symmetric positive matrix, made doubly stochastic."""

    def matrix(self, n: int, seed: int) -> Matrix:
        raw = stream(seed, "topology").random((n, n)) ** 2 + 1e-3
        w = raw + raw.T
        for _ in range(1000):  # Sinkhorn and Knopp, kept symmetric
            scale = 1 / np.sqrt(w.sum(axis=1))
            w = w * scale[:, None] * scale[None, :]
        return w


@dataclass(kw_only=True, frozen=True)
class RandomRegular(Topology):
    """`degree`/2 random cycles through all clients laid over each other; every edge and the client itself 1/(degree
    + 1)."""

    degree: PositiveInt = 4
    """Neighbours of a client; an even number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.degree % 2:
            raise ConfigError(f"{self.degree} is odd: a cycle gives every client two neighbours", key="degree")

    def matrix(self, n: int, seed: int) -> Matrix:
        rng, w = stream(seed, "topology"), np.eye(n)
        for _ in range(self.degree // 2):
            order = rng.permutation(n)
            step = np.zeros((n, n))
            step[order, np.roll(order, -1)] = 1
            w += step + step.T
        return w / (self.degree + 1)


@dataclass(kw_only=True, frozen=True)
class Torus(Topology):
    """A grid, as square as n allows, that wraps around: each client and its four neighbours, a fifth each."""

    def matrix(self, n: int, seed: int) -> Matrix:
        rows = next(r for r in range(math.isqrt(n), 0, -1) if n % r == 0)
        grid = np.arange(n).reshape(rows, -1)
        w = np.eye(n)
        for axis in (0, 1):
            for shift in (1, -1):
                w[grid.ravel(), np.roll(grid, shift, axis=axis).ravel()] += 1
        return w / 5


@dataclass(kw_only=True, frozen=True)
class Given(Topology):
    """The user's own matrix, row by row; it must be doubly stochastic."""

    rows: tuple[tuple[float, ...], ...] = ()
    """W, one row a client."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({len(row) for row in self.rows}) != 1:
            raise ConfigError("give W as rows of equal length", key="rows")
        check(np.array(self.rows, dtype=float))

    def matrix(self, n: int, seed: int) -> Matrix:
        if len(self.rows) != n:
            raise ConfigError(f"{len(self.rows)} rows for {n} clients", key="rows")
        return np.array(self.rows, dtype=float)


TOPOLOGIES: dict[str, type[Topology]] = {
    "ring": Ring,
    "complete": Complete,
    "unbalanced-complete": UnbalancedComplete,
    "random-regular": RandomRegular,
    "torus": Torus,
    "given": Given,
}
