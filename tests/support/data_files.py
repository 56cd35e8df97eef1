"""Small data files to read and to serve."""

from __future__ import annotations

import hashlib
import pathlib
import struct
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Serve = Callable[[Mapping[str, bytes]], str]
Answer = Callable[[bytes], str]


def idx(array: NDArray[np.uint8], zero: int = 0, kind: int = 0x08) -> bytes:
    """Return an IDX file: two zero bytes, the type, the number of dimensions, their big-endian sizes, the bytes."""
    return struct.pack(f">HBB{array.ndim}I", zero, kind, array.ndim, *array.shape) + array.tobytes()


def md5(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def listing(folder: pathlib.Path) -> list[str]:
    """Return the names in a folder, including hidden ones; none if the folder does not exist."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
