"""Next-character prediction data from the text of plays."""

from __future__ import annotations

import re
import string

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint8]

# The vocabulary of LEAF, in its order.
CHARACTERS = (
    "\n !\"&'(),-." + string.digits + ":;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"
)  # fmt: skip

_ABSENT = 255
_POSITIONS = np.array([CHARACTERS.index(chr(i)) if chr(i) in CHARACTERS else _ABSENT for i in range(128)], np.uint8)


def speeches(text: str) -> dict[str, str]:
    """Return the concatenated lines of each role, in the order in which the roles first speak.

    A block of lines is a speech, and its first line, "NAME:", is the role. Every run of whitespace becomes one space,
    as in LEAF.
    """
    spoken: dict[str, list[str]] = {}
    for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n").strip()):
        name, _, speech = block.partition("\n")
        if name.endswith(":"):
            spoken.setdefault(name[:-1].strip(), []).append(speech)
    return {name: " ".join(" ".join(parts).split()) for name, parts in spoken.items()}


def encode(text: str) -> Tokens:
    """Return the positions of the characters in CHARACTERS, dropping all others."""
    tokens = _POSITIONS[np.frombuffer(text.encode("ascii", errors="ignore"), dtype=np.uint8)]
    known: Tokens = tokens[tokens != _ABSENT]
    return known


def windows(tokens: Tokens, length: int, stride: int) -> tuple[Tokens, Tokens]:
    """Return all windows of `length` tokens, `stride` apart, and the next token at each of their positions."""
    if len(tokens) <= length:
        return np.empty((0, length), np.uint8), np.empty((0, length), np.uint8)
    rows = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::stride]
    return rows[:, :-1], rows[:, 1:]


def split_point(count: int, length: int, stride: int, train: float) -> tuple[int, int]:
    """Return the number of training windows of a role and the index of its first test window.

    The split is chronological rather than random. The first test window starts at the last training label, so that no
    test label occurs in the training data. The windows in between are dropped.
    """
    end = max(1, int(train * count))
    return end, end - 1 + -(-length // stride)
