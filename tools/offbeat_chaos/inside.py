"""Entry points of the processes that `children` starts."""

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
    output: pathlib.Path, journal: pathlib.Path, words: list[str], folder: pathlib.Path, fault: Fault | None, every: int
) -> None:
    """Run `python -m offbeat …` with a fault.

    Args:
        output: File for stdout and stderr.
        journal: File for the notes of the saboteur.
        words: Arguments of the command.
        folder: The run folder that the fault concerns.
        fault: The fault, if any.
        every: Turns between two checkpoints.
    """
    _detach(output)
    Saboteur(folder, journal, fault, every).install()
    sys.argv = ["offbeat", *words]
    runpy.run_module("offbeat", run_name="__main__")


def trial(output: pathlib.Path, journal: pathlib.Path, arguments: dict[str, Any]) -> None:
    """Run an experiment with or without message faults and write its figures to the journal."""
    _detach(output)
    journal.write_text(json.dumps({"trial": trials.trial(**arguments)}) + "\n")


def _detach(output: pathlib.Path) -> None:
    """Start a new session and redirect stdout and stderr to a file."""
    os.setsid()
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.close(descriptor)
