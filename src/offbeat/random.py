"""Named random streams: every random number follows from the seed and from what it is for.

A key is a 64-bit integer hashed from a path such as (seed, "job", client, trip).  Nothing here has a state, so there
is nothing to save in a checkpoint, and the n-th trip of a client has the same luck under every algorithm: comparisons
are made on common random numbers.
"""

from __future__ import annotations

import functools
import hashlib
import math

import numpy as np
import torch
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: the increment of splitmix64


@functools.cache
def word(text: str) -> int:
    """The number that stands for a name in a path."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def key(*path: int | str) -> int:
    """The key of a path of integers and names."""
    k = _GOLDEN
    for part in path:
        k = fold_in(k, word(part) if isinstance(part, str) else part)
    return k


def fold_in(k: int, number: int) -> int:
    """The key of a path that goes on with a number: fold_in(key(*path), n) = key(*path, n), for less work.

    This is splitmix64, in whose finaliser every input bit reaches every output bit.
    """
    z = ((k + _GOLDEN) ^ number) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def fold_in_pair(k: int, number: int, next_number: int) -> int:
    """The same for two numbers, written out for the engine."""
    z = ((k + _GOLDEN) ^ number) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    z = (((z ^ (z >> 31)) + _GOLDEN) ^ next_number) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def fold_in_each(k: int, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """fold_in(k, n) for every n ≥ 0."""
    z = np.uint64((k + _GOLDEN) & _MASK) ^ numbers.astype(np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    out: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return out


def uniform(k: int) -> float:
    """A number in [0, 1) with 53 random bits: those of fold_in(k, 0), written out, for it is called most."""
    z = (k + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


def uniforms(k: int, count: int) -> list[float]:
    """uniform(k), uniform(k + 1), …"""
    z = np.arange(count, dtype=np.uint64) + np.uint64((k + _GOLDEN) & _MASK)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return [n * 2.0**-53 for n in ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).tolist()]


def normal(k: int) -> float:
    """A standard normal number (Box and Muller)."""
    u, v = uniform(k), uniform(k ^ 0x5851F42D4C957F2D)
    return math.sqrt(-2.0 * math.log(1.0 - u)) * math.cos(2.0 * math.pi * v)


def exponential(k: int) -> float:
    """An exponential number of mean one."""
    return -math.log(1.0 - uniform(k))


def random_uint64(keys: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    """(…, count) random 64-bit words, a stream of its own for each key: splitmix64, for many keys at once."""
    with np.errstate(over="ignore"):
        z = keys[..., None] + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return out


def stream(*path: int | str) -> np.random.Generator:
    """A NumPy generator for work that needs many numbers: shuffles, partitions."""
    return np.random.Generator(np.random.Philox(key=key(*path)))


def torch_stream(*path: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """The same for tensors."""
    return torch.Generator(device=device).manual_seed(key(*path) >> 1)
