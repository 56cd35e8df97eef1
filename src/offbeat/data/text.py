"""Plays as data: who says what, and what comes next in what they say."""

from __future__ import annotations

import re
import string

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint8]

# The 80 characters that LEAF's models know, in its order.
CHARACTERS = (
    "\n !\"&'(),-." + string.digits + ":;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"
)  # fmt: skip

_ABSENT = 255
_POSITIONS = np.array([CHARACTERS.index(chr(i)) if chr(i) in CHARACTERS else _ABSENT for i in range(128)], np.uint8)


def speeches(text: str) -> dict[str, str]:
    """Everything that each role says, in one piece: a block of lines is a speech, its first line "NAME:" the role.

    Line ends become spaces and runs of spaces one, as in LEAF.  Roles stand in the order of their first words.
    """
    said: dict[str, list[str]] = {}
    for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n").strip()):
        name, _, speech = block.partition("\n")
        if name.endswith(":"):
            said.setdefault(name[:-1].strip(), []).append(speech)
    return {name: " ".join(" ".join(parts).split()) for name, parts in said.items()}


def encode(text: str) -> Tokens:
    """Positions in CHARACTERS; what is not among them is left out."""
    found = _POSITIONS[np.frombuffer(text.encode("ascii", errors="ignore"), dtype=np.uint8)]
    known: Tokens = found[found != _ABSENT]
    return known


def windows(tokens: Tokens, length: int, stride: int) -> tuple[Tokens, Tokens]:
    """All stretches of `length` tokens that begin every `stride` tokens, and the token that follows each."""
    if len(tokens) <= length:
        return np.empty((0, length), np.uint8), np.empty(0, np.uint8)
    rows = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::stride]
    return rows[:, :-1], rows[:, -1]


def cut(count: int, length: int, stride: int, train: float) -> tuple[int, int]:
    """How many of a role's windows are for training, and the first that is for test.

    In time, not at random: the test part begins with the last token that training has had to predict, so that no
    test label has been seen in training.  The windows between the two are left out.
    """
    end = max(1, int(train * count))
    return end, end - 1 + -(-length // stride)
