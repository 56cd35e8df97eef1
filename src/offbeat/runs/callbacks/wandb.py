"""Weights & Biases."""

from __future__ import annotations

import os
import pathlib
import secrets
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from offbeat.runs.callbacks.base import Line, RunInfo, RunOutcome
from offbeat.runs.callbacks.tracker import Known, Page, Tracker, numbers

BLOCK, HEAD, WHOLE, LAST = 32768, 7, 1, 4  # of a LevelDB log: sizes, and kinds of records
EXIT = {"finished": 0, "interrupted": 255, "failed": 1}  # which W&B shows as finished, killed, failed


class WandB(Tracker):
    """Writes folders that `wandb sync` uploads.  Nothing leaves the machine, unless WANDB_MODE is "online".

    place    in which the folder "wandb" is made; beside the run's folder when left out
    project  under which W&B has the runs

    A step is a version.  A run that is resumed has the same id; offline it gets another folder, and `wandb sync`
    uploads the folders of one id in their order.
    """

    library: ClassVar[str] = "wandb"

    def __init__(self, place: str | os.PathLike[str] | None = None, project: str = "offbeat") -> None:
        super().__init__(place)
        self.project = project

    def open(self, run: RunInfo, known: Known) -> Page:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        folder = self.folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        if known.id is None:
            known = replace(known, id=secrets.token_hex(4))
        elif mode != "online":
            known = replace(known, version=_written(folder, known.id))
        return _Run(
            wandb.init(
                project=self.project, name=run.name, id=known.id, dir=folder, config=dict(run.config), mode=mode,
                resume="allow" if mode == "online" else None,  # offline, the id alone must do
                reinit="create_new",  # a sweep has several at once
                settings=wandb.Settings(silent=True, console="off"),
            ),
            known,
        )  # fmt: skip


def _written(folder: pathlib.Path, id_: str) -> int:
    """The last version in the files of a run: W&B's process keeps some to itself, which are lost when it is killed."""
    files = folder.glob(f"wandb/offline-run-*-{id_}*/run-{id_}.wandb")
    return max((step for file in files for step in _steps(file)), default=-1)


def _steps(file: pathlib.Path) -> Iterator[int]:
    """Of all lines in a file, which is a log of records in LevelDB's format: blocks of 32 KiB, after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    raw, place, body = file.read_bytes(), 7, b""
    while place + HEAD <= len(raw):
        left = BLOCK - place % BLOCK
        length, kind = struct.unpack_from("<HB", raw, place + 4)  # after a checksum
        if left < HEAD or not kind:  # the rest of a block is empty
            place += left
            continue
        body += raw[place + HEAD : place + HEAD + length]
        place += HEAD + length
        if kind in (WHOLE, LAST) and place <= len(raw):
            items = Record.FromString(body).history.item
            yield from (int(item.value_json) for item in items if "_step" in (item.key, *item.nested_key))
            body = b""


class _Run(Page):
    def __init__(self, run: Any, known: Known) -> None:
        self._run, self.known = run, known

    def write(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self._run.log(numbers(line), step=line["version"])

    def close(self, ending: RunOutcome) -> None:
        if ending.state == "finished" and ending.summary is not None:
            self._run.summary.update(dict(ending.summary))
        self._run.finish(exit_code=EXIT[ending.state])
