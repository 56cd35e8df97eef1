"""progress.json: the progress of a deployment, for processes that follow its run folder."""

from __future__ import annotations

import json
import os
import pathlib
from dataclasses import asdict

from offbeat.files import write_json
from offbeat.runs.result import ProgressSnapshot, RunCounters

NAME = "progress.json"


def write(folder: pathlib.Path, snapshot: ProgressSnapshot) -> None:
    """Write the progress of this process's run."""
    write_json(
        folder / NAME,
        {"pid": os.getpid(), "rounds": snapshot.rounds, "seconds_limit": snapshot.virtual_limit, "used": snapshot.used,
         "counters": asdict(snapshot.counters), "metrics": snapshot.metrics[-1] if snapshot.metrics else None},
    )  # fmt: skip


def read(folder: pathlib.Path) -> tuple[ProgressSnapshot, int] | None:
    """Return the progress and the id of the process that wrote it, or None if there is none."""
    try:
        found = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    metrics = [found["metrics"]] if found["metrics"] else []
    counters = RunCounters(**found["counters"])
    rounds, limit, used = found["rounds"], found["seconds_limit"], found.get("used")
    return ProgressSnapshot(counters, rounds, limit, metrics, real=True, used=used), found["pid"]


def delete(folder: pathlib.Path) -> None:
    """Delete the progress of an earlier process."""
    (folder / NAME).unlink(missing_ok=True)
