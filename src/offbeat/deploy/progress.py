"""progress.json: how far a deployment is, for whoever looks at its folder from outside."""

from __future__ import annotations

import json
import os
import pathlib
from dataclasses import asdict

from offbeat.experiments.folder import write_json
from offbeat.experiments.result import Glance, Tally

NAME = "progress.json"


def write(folder: pathlib.Path, glance: Glance) -> None:
    """By the server app, a few times a second at most."""
    write_json(
        folder / NAME,
        {"pid": os.getpid(), "rounds": glance.rounds, "seconds_limit": glance.virtual_limit,
         "tally": asdict(glance.tally), "metrics": glance.metrics[-1] if glance.metrics else None},
    )  # fmt: skip


def read(folder: pathlib.Path) -> tuple[Glance, int] | None:
    """The moment, and the process that wrote it; None while there is nothing."""
    try:
        found = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    metrics = [found["metrics"]] if found["metrics"] else []
    return Glance(Tally(**found["tally"]), found["rounds"], found["seconds_limit"], metrics, real=True), found["pid"]


def forget(folder: pathlib.Path) -> None:
    """What there is is of an earlier process."""
    (folder / NAME).unlink(missing_ok=True)
