"""Atomic writes and JSON files."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any


def write_atomic(path: pathlib.Path, body: bytes) -> None:
    """Replace a file as a whole: a reader sees the old content or the new one, never a part."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as out:
            out.write(body)
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_atomic(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def overwrite(path: pathlib.Path, body: bytes) -> None:
    """Write into an existing file: it needs no space if the content is as long as before, but is not atomic."""
    with path.open("r+b", buffering=0) as out:
        out.write(body)
        out.truncate(len(body))
