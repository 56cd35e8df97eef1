"""Checkpoints: the whole state of a run, written atomically, the last two kept.

A checkpoint is a file of tensors and plain values, read with torch's weights-only loader, which runs no code. A small
record with its checksum is written after it. If a checkpoint is torn or damaged, the previous one is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from typing import Any, cast

import torch

from offbeat.errors import RunFolderError
from offbeat.files import write_json

KEEP = 2
FORMAT = 4


def save(folder: pathlib.Path, state: dict[str, Any]) -> None:
    """Write a new checkpoint, then remove all but the last two."""
    number = max(_numbers(folder), default=0) + 1
    body, part = folder / f"{number:08d}.pt", folder / f".{number:08d}.part"
    try:
        with part.open("wb") as out:
            torch.save({"format": FORMAT, **state}, out)
            out.flush()
            os.fsync(out.fileno())
        digest = _digest(part)
        part.replace(body)
    finally:
        part.unlink(missing_ok=True)
    write_json(folder / f"{number:08d}.json", {"sha256": digest})
    sealed = [n for n in _numbers(folder) if (folder / f"{n:08d}.json").is_file()]
    for old in set(_numbers(folder)) - set(sealed[-KEEP:]):
        (folder / f"{old:08d}.json").unlink(missing_ok=True)
        (folder / f"{old:08d}.pt").unlink(missing_ok=True)


def load(folder: pathlib.Path, device: str) -> dict[str, Any] | None:
    """Return the newest intact checkpoint, or None.

    Raises:
        RunFolderError: The checkpoint was written by an incompatible version.
    """
    for number in reversed(_numbers(folder)):
        body, record = folder / f"{number:08d}.pt", folder / f"{number:08d}.json"
        try:
            if json.loads(record.read_text(encoding="utf-8"))["sha256"] != _digest(body):
                continue
        except (OSError, ValueError, KeyError):
            continue
        state = cast("dict[str, Any]", torch.load(body, map_location=device, weights_only=True))
        if state["format"] != FORMAT:
            raise RunFolderError(f"{body} has format {state['format']}; this offbeat reads format {FORMAT}")
        return state
    return None


def clear(folder: pathlib.Path) -> None:
    """Remove all checkpoints."""
    for path in folder.iterdir():
        path.unlink(missing_ok=True)


def _numbers(folder: pathlib.Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.pt") if path.stem.isdigit())


def _digest(path: pathlib.Path) -> str:
    with path.open("rb") as body:
        return hashlib.file_digest(body, "sha256").hexdigest()
