"""Named random streams: every random number is a function of the seed and of its purpose.

A key is a 64-bit integer hashed from a path such as (seed, "job", client, trip). The streams have no state, so a
checkpoint need not save any, and the n-th job of a client draws the same numbers under every algorithm: comparisons use
common random numbers.
"""

from __future__ import annotations

import functools
import hashlib
import math

import numpy as np
import torch
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: the increment of splitmix64
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # multipliers of its finalizer
_UNIT = 2.0**-53


@functools.cache
def word(text: str) -> int:
    """Return the number that represents a name in a path."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def key(*path: int | str) -> int:
    """Return the key of a path of integers and names."""
    k = _GOLDEN
    for part in path:
        k = fold_in(k, word(part) if isinstance(part, str) else part)
    return k


def fold_in(k: int, number: int) -> int:
    """Return the key of a path extended by a number.

    Folding n into key(*path) gives key(*path, n). This is splitmix64, whose finalizer lets every input bit affect every
    output bit.
    """
    z = ((k + _GOLDEN) ^ number) & _MASK
    z = ((z ^ (z >> 30)) * _FIRST) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND) & _MASK
    return z ^ (z >> 31)


def fold_in_pair(k: int, number: int, next_number: int) -> int:
    """Return the key of a path extended by two numbers."""
    return fold_in(fold_in(k, number), next_number)


def fold_in_each(k: int, numbers: NDArray[np.int64]) -> Words:
    """Return fold_in(k, n) for every n ≥ 0 of an array."""
    return _finalize(np.uint64((k + _GOLDEN) & _MASK) ^ numbers.astype(np.uint64))


def uniform(k: int) -> float:
    """Return a number in [0, 1) with 53 random bits."""
    return (fold_in(k, 0) >> 11) * _UNIT


def uniforms(k: int, count: int) -> list[float]:
    """Return uniform(k), uniform(k + 1), … as a list of `count` numbers."""
    z = _finalize(np.arange(count, dtype=np.uint64) + np.uint64((k + _GOLDEN) & _MASK))
    return [n * _UNIT for n in (z >> np.uint64(11)).tolist()]


def normal(k: int) -> float:
    """Return a standard normal number (Box–Muller)."""
    u, v = uniform(k), uniform(k ^ 0x5851F42D4C957F2D)
    return math.sqrt(-2.0 * math.log(1.0 - u)) * math.cos(2.0 * math.pi * v)


def exponential(k: int) -> float:
    """Return an exponentially distributed number of mean one."""
    return -math.log(1.0 - uniform(k))


def random_uint64(keys: Words, count: int) -> Words:
    """Return (…, count) random 64-bit words, one independent stream per key."""
    with np.errstate(over="ignore"):
        return _finalize(keys[..., None] + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN))


def stream(*path: int | str) -> np.random.Generator:
    """Return a NumPy generator for work that needs many numbers, such as shuffles and partitions."""
    return np.random.Generator(np.random.Philox(key=key(*path)))


def torch_stream(*path: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a torch generator for work that needs many numbers."""
    return torch.Generator(device=device).manual_seed(key(*path) >> 1)


def _finalize(z: Words) -> Words:
    """Apply the finalizer of splitmix64 to an array of words; see `fold_in`."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
    mixed: Words = z ^ (z >> np.uint64(31))
    return mixed
