"""What the processes do that `children` starts."""

from __future__ import annotations

import json
import os
import pathlib
import runpy
import sys
from typing import Any

from offbeat_chaos import trials
from offbeat_chaos.faults import Fault
from offbeat_chaos.sabotage import Saboteur


def command(
    said: pathlib.Path, journal: pathlib.Path, words: list[str], folder: pathlib.Path, fault: Fault | None, every: int
) -> None:
    """`python -m offbeat …`, with a fault."""
    _alone(said)
    Saboteur(folder, journal, fault, every).install()
    sys.argv = ["offbeat", *words]
    runpy.run_module("offbeat", run_name="__main__")


def trial(said: pathlib.Path, journal: pathlib.Path, arguments: dict[str, Any]) -> None:
    """A run whose messages are disturbed."""
    _alone(said)
    journal.write_text(json.dumps({"trial": trials.trial(**arguments)}) + "\n")


def _alone(said: pathlib.Path) -> None:
    """In a session of its own, with a file for a terminal."""
    os.setsid()
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(out, number)
    os.close(out)
