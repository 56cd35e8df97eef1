"""Runs as tables of rows, for spreadsheets and other programs."""

from __future__ import annotations

import csv
import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np

from offbeat.errors import RunFolderError
from offbeat.runs.folder import STATUS, SWEEP, UPDATE, read_json

BLOCK = 65_536  # rows of the update log at once


@dataclass(frozen=True)
class Table:
    """Names of columns, and rows."""

    columns: Sequence[str]
    rows: Iterable[Sequence[Any]]

    def write(self, out: TextIO) -> None:
        """As CSV; numbers are written so that reading them gives the same numbers again."""
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)


def runs(folders: Sequence[pathlib.Path]) -> dict[str, pathlib.Path]:
    """Run folders by name; a sweep's folder stands for its runs that have begun."""
    found: dict[str, pathlib.Path] = {}
    for folder in folders:
        if (folder / SWEEP).is_file():
            try:
                inside = [folder / run["folder"] for run in read_json(folder / SWEEP)["runs"]]
            except (KeyError, TypeError) as error:
                raise RunFolderError(f"{folder / SWEEP} is not a list of runs: {error!r}") from error
            found |= {str(path): path for path in inside if (path / "config.toml").is_file()}
        elif (folder / "config.toml").is_file():
            found[str(folder)] = folder
        else:
            raise RunFolderError(f"{folder} is not a run folder: it has no config.toml")
    return found


def metrics(folders: Sequence[pathlib.Path]) -> Table:
    """A row an evaluation; a run without a figure that another has leaves its column empty."""
    lines = [{"run": name, **line} for name, folder in runs(folders).items() for line in read_metrics(folder)]
    columns = list(dict.fromkeys(["run", *(column for line in lines for column in line)]))
    return Table(columns, [[line.get(column) for column in columns] for line in lines])


def updates(folders: Sequence[pathlib.Path]) -> Table:
    """A row a trip that ended."""
    logs = {name: _updates(folder) for name, folder in runs(folders).items()}

    def rows() -> Iterator[Sequence[Any]]:
        for name, log in logs.items():
            for first in range(0, len(log), BLOCK):
                for *values, status in log[first : first + BLOCK].tolist():
                    yield name, *values, STATUS[status]

    return Table(["run", *(UPDATE.names or ())], rows())


def read_metrics(folder: pathlib.Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl."""
    path = folder / "metrics.jsonl"
    lines: list[dict[str, Any]] = []
    try:
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            line = json.loads(text)
            if not isinstance(line, dict):
                raise ValueError(f"line {number} is not a table")
            lines.append(line)
    except json.JSONDecodeError as error:
        raise RunFolderError(f"{path}: line {len(lines) + 1} is not whole: {error}") from error
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error
    return lines


def _updates(folder: pathlib.Path) -> np.ndarray[Any, Any]:
    path = folder / "updates.npy"
    try:
        log: np.ndarray[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error
    if log.dtype != UPDATE:
        raise RunFolderError(f"{path} is not an update log of this offbeat: it has {log.dtype}")
    if len(log) and log["status"].max() >= len(STATUS):
        raise RunFolderError(f"{path} is damaged: it has a status {log['status'].max()}")
    return log
