"""The tracker for Weights & Biases."""

from __future__ import annotations

import os
import pathlib
import secrets
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from offbeat.runs.callbacks.base import Line, RunInfo, RunOutcome
from offbeat.runs.callbacks.tracker import TrackedRun, Tracker, TrackerState, numbers

BLOCK, HEAD, WHOLE, LAST = 32768, 7, 1, 4  # of a LevelDB log: sizes, and types of records
EXIT = {"finished": 0, "interrupted": 255, "failed": 1}  # which W&B shows as finished, killed, failed


class WandB(Tracker):
    """Write folders that `wandb sync` uploads. Nothing leaves the machine unless WANDB_MODE is "online".

    A step is a version. A resumed run keeps its ID; offline it gets another folder, and `wandb sync` uploads the
    folders of one ID in order.

    Args:
        place: Folder in which the folder "wandb" is created; by default the one that contains the run folder.
        project: W&B's project for the runs.
    """

    library: ClassVar[str] = "wandb"

    def __init__(self, place: str | os.PathLike[str] | None = None, project: str = "offbeat") -> None:
        super().__init__(place)
        self.project = project

    def open(self, run: RunInfo, state: TrackerState) -> TrackedRun:
        """Continue the run in W&B, or create it."""
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        folder = self.folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        if state.id is None:
            state = replace(state, id=secrets.token_hex(4))
        elif mode != "online":
            state = replace(state, version=_last_version(folder, state.id))
        return _WandBRun(
            wandb.init(
                project=self.project, name=run.name, id=state.id, dir=folder, config=dict(run.config), mode=mode,
                resume="allow" if mode == "online" else None,  # not available offline, where the ID suffices
                reinit="create_new",  # a sweep has several concurrent runs
                settings=wandb.Settings(silent=True, console="off"),
            ),
            state,
        )  # fmt: skip


def _last_version(folder: pathlib.Path, id_: str) -> int:
    """Return the last version in the files of a run. W&B buffers some evaluations, which are lost when it is killed."""
    files = folder.glob(f"wandb/offline-run-*-{id_}*/run-{id_}.wandb")
    return max((step for file in files for step in _steps(file)), default=-1)


def _steps(file: pathlib.Path) -> Iterator[int]:
    """Yield the steps in a W&B file: a log of records in LevelDB's format, in blocks of 32 KiB after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    raw, place, body = file.read_bytes(), 7, b""
    while place + HEAD <= len(raw):
        left = BLOCK - place % BLOCK
        length, kind = struct.unpack_from("<HB", raw, place + 4)  # after a checksum
        if left < HEAD or not kind:  # padding at the end of a block
            place += left
            continue
        body += raw[place + HEAD : place + HEAD + length]
        place += HEAD + length
        if kind in (WHOLE, LAST) and place <= len(raw):
            items = Record.FromString(body).history.item
            yield from (int(item.value_json) for item in items if "_step" in (item.key, *item.nested_key))
            body = b""


class _WandBRun(TrackedRun):
    def __init__(self, run: Any, state: TrackerState) -> None:
        self._run, self.state = run, state

    def write(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self._run.log(numbers(line), step=line["version"])

    def close(self, outcome: RunOutcome) -> None:
        if outcome.state == "finished" and outcome.summary is not None:
            self._run.summary.update(dict(outcome.summary))
        self._run.finish(exit_code=EXIT[outcome.state])
