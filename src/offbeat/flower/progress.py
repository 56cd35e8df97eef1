"""progress.json: how far a deployment is, for whoever looks at its folder from outside."""

from __future__ import annotations

import json
import os
import pathlib
from dataclasses import asdict

from offbeat.files import write_json
from offbeat.runs.result import ProgressSnapshot, RunCounters

NAME = "progress.json"


def write(folder: pathlib.Path, glance: ProgressSnapshot) -> None:
    """By the server app, a few times a second at most."""
    write_json(
        folder / NAME,
        {"pid": os.getpid(), "rounds": glance.rounds, "seconds_limit": glance.virtual_limit,
         "tally": asdict(glance.counters), "metrics": glance.metrics[-1] if glance.metrics else None},
    )  # fmt: skip


def read(folder: pathlib.Path) -> tuple[ProgressSnapshot, int] | None:
    """The moment, and the process that wrote it; None while there is nothing."""
    try:
        found = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    metrics = [found["metrics"]] if found["metrics"] else []
    return ProgressSnapshot(
        RunCounters(**found["tally"]), found["rounds"], found["seconds_limit"], metrics, real=True
    ), found["pid"]


def forget(folder: pathlib.Path) -> None:
    """What there is is of an earlier process."""
    (folder / NAME).unlink(missing_ok=True)
