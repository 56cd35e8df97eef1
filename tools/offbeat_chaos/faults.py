"""What is done to a process, and when."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from offbeat.random import key, stream, uniform

Kind = Literal["turn", "twice", "clock", "checkpoint", "file", "full disk", "read-only"]
SIGNALLED = ("turn", "twice", "clock")
SHARE = 0.2  # of a whole run: a fault comes before this much has passed since the last one


@dataclass(frozen=True)
class Fault:
    """Something that ends a process, or makes it end itself.

    turn         a signal in the n-th turn of the loop
    twice        the same, and once more in the middle of the checkpoint that the first one has asked for
    clock        SIGKILL from outside after some seconds, wherever the process is then
    checkpoint   SIGKILL in the n-th operation on files of a checkpoint; of a write, a part has reached the file
    file         the same, on the other files of a run folder
    full disk    from the n-th write to the folder on there is no space left; of the first, a part has reached the file
    read-only    from the n-th operation on the folder cannot be changed
    """

    kind: Kind
    at: float  # how many operations, or seconds
    part: float = 0.0  # share of the bytes of a write that reach the file
    signal: int = signal.SIGKILL

    @property
    def name(self) -> str:
        return f"{signal.Signals(self.signal).name} {self.kind}" if self.kind in SIGNALLED else self.kind


DECK: tuple[tuple[Kind, int], ...] = (
    ("turn", signal.SIGKILL),
    ("turn", signal.SIGTERM),
    ("turn", signal.SIGINT),
    ("twice", signal.SIGINT),
    ("clock", signal.SIGKILL),
    ("checkpoint", signal.SIGKILL),
    ("checkpoint", signal.SIGKILL),
    ("file", signal.SIGKILL),
    ("full disk", signal.SIGKILL),
    ("full disk", signal.SIGKILL),
    ("read-only", signal.SIGKILL),
)
"""The kinds in the proportions in which they come."""


def drawn(seed: int, run: int, whole: Mapping[str, float]) -> Iterator[Fault]:
    """The faults of a run of a campaign, without end; `whole` says how much of each kind a run without faults has."""
    number = 0
    while True:
        deck = stream(seed, "chaos", run, "deck", number).permutation(len(DECK))
        for kind, signal_ in (DECK[card] for card in deck):
            k = key(seed, "chaos", run, "fault", number)
            at = uniform(key(k, "at")) * whole["turn" if kind == "twice" else kind] * SHARE
            yield Fault(kind, at if kind == "clock" else 1 + int(at), uniform(key(k, "part")), signal_)
            number += 1
