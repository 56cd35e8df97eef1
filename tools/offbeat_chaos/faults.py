"""Faults that end a process, and the order in which a campaign draws them."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from offbeat.random import key, stream, uniform

Kind = Literal["turn", "twice", "clock", "checkpoint", "file", "full disk", "read-only"]
SIGNALED = ("turn", "twice", "clock")
MAX_SHARE = 0.2  # of a whole run: a fault comes before this much has passed since the last one


@dataclass(frozen=True)
class Fault:
    """A fault that kills a process or makes it fail.

    The kinds are:
        turn: A signal in the n-th turn of the loop.
        twice: Like `turn`, with a second signal in the middle of the checkpoint that the first one triggers.
        clock: SIGKILL from outside after some seconds, wherever the process is then.
        checkpoint: SIGKILL at the n-th file operation on a checkpoint; a write reaches the file only in part.
        file: Like `checkpoint`, for the other files of a run folder.
        full disk: No space is left from the n-th write to the folder on; the first write reaches the file in part.
        read-only: The folder cannot be changed from the n-th operation on.
    """

    kind: Kind
    at: float
    """Number of the turn or operation, or seconds."""
    part: float = 0.0
    """Share of the bytes of a write that reach the file."""
    signal: int = signal.SIGKILL

    @property
    def name(self) -> str:
        """The kind, with the signal where there is a choice."""
        return f"{signal.Signals(self.signal).name} {self.kind}" if self.kind in SIGNALED else self.kind


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
"""The kinds of faults in their proportions; a campaign shuffles this deck again and again."""


def draw_faults(seed: int, run: int, totals: Mapping[str, float]) -> Iterator[Fault]:
    """Yield the faults of one run of a campaign, without end.

    Args:
        seed: The campaign's seed.
        run: Number of the run.
        totals: How many turns, operations and seconds a run without faults takes, per kind of fault.
    """
    number = 0
    while True:
        deck = stream(seed, "chaos", run, "deck", number).permutation(len(DECK))
        for kind, signal_ in (DECK[card] for card in deck):
            k = key(seed, "chaos", run, "fault", number)
            at = uniform(key(k, "at")) * totals["turn" if kind == "twice" else kind] * MAX_SHARE
            yield Fault(kind, at if kind == "clock" else 1 + int(at), uniform(key(k, "part")), signal_)
            number += 1
