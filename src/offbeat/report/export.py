"""Export of runs as tables, for spreadsheets and other programs."""

from __future__ import annotations

import csv
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from offbeat.errors import RunFolderError
from offbeat.runs.folder import CONFIG, STATUS, SWEEP, UPDATE, read_metrics, read_sweep, read_updates

BLOCK = 65_536  # rows of the update log that are converted at once


@dataclass(frozen=True)
class Table:
    """Column names and rows."""

    columns: Sequence[str]
    rows: Iterable[Sequence[Any]]

    def write(self, out: TextIO) -> None:
        """Write the table as CSV, with all digits of every number."""
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)


def runs(folders: Sequence[pathlib.Path]) -> dict[str, pathlib.Path]:
    """Return run folders by name; the folder of a sweep stands for those of its runs that have started."""
    found: dict[str, pathlib.Path] = {}
    for folder in folders:
        if (folder / SWEEP).is_file():
            inside = [folder / run["folder"] for run in read_sweep(folder)]
            found |= {str(path): path for path in inside if (path / CONFIG).is_file()}
        elif (folder / CONFIG).is_file():
            found[str(folder)] = folder
        else:
            raise RunFolderError(f"{folder} is not a run folder: it has no {CONFIG}")
    return found


def metrics(folders: Sequence[pathlib.Path]) -> Table:
    """Return one row per evaluation; a metric that a run does not have is left empty."""
    lines = [{"run": name, **line} for name, folder in runs(folders).items() for line in read_metrics(folder)]
    columns = list(dict.fromkeys(["run", *(column for line in lines for column in line)]))
    return Table(columns, [[line.get(column) for column in columns] for line in lines])


def updates(folders: Sequence[pathlib.Path]) -> Table:
    """Return one row per completed job."""
    columns = UPDATE.names or ()
    code = columns.index("status")
    logs = {name: read_updates(folder, mapped=True) for name, folder in runs(folders).items()}

    def rows() -> Iterator[Sequence[Any]]:
        for name, log in logs.items():
            for first in range(0, len(log), BLOCK):
                for row in log[first : first + BLOCK].tolist():
                    yield name, *row[:code], STATUS[row[code]], *row[code + 1 :]

    return Table(["run", *columns], rows())
