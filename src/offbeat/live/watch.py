"""What happens under a folder of runs, noticed by looking at sizes and times of files again and again."""

from __future__ import annotations

import pathlib
import threading
from dataclasses import dataclass, field

from offbeat.experiments.folder import in_use
from offbeat.report.read import Record, find, named, read

FILES = ("config.toml", "status.json", "metrics.jsonl", "summary.json")
Signature = tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True)
class Change:
    """What a look has found."""

    changed: list[int]
    """Runs that are new or are not as they were."""
    other: bool
    """Whether there are other runs than before, or other names."""


@dataclass
class Watched:
    """The runs under a folder.  A run keeps its number for as long as it is watched, also when it is gone."""

    root: pathlib.Path
    records: dict[int, Record] = field(default_factory=dict)
    """By number, with labels that tell them apart."""
    _read: dict[int, Record] = field(default_factory=dict)
    _numbers: dict[pathlib.Path, int] = field(default_factory=dict)
    _signatures: dict[int, tuple[Signature, bool]] = field(default_factory=dict)
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def look(self) -> Change:
        """Read anew what has changed."""
        with self._one_at_a_time:
            before = {number: record.label for number, record in self.records.items()}
            found: dict[int, Record] = {}
            changed: list[int] = []
            for path in find(self.root):
                number = self._numbers.setdefault(path, len(self._numbers))
                signature = _signature(path), in_use(path)
                if number in self._read and self._signatures.get(number) == signature:
                    found[number] = self._read[number]
                else:
                    found[number] = read(path)
                    changed.append(number)
                self._signatures[number] = signature
            self._read = found
            self.records = dict(zip(found, named(list(found.values())), strict=True))
            return Change(changed, {number: record.label for number, record in self.records.items()} != before)


def _signature(path: pathlib.Path) -> Signature:
    return tuple(_stamp(path / name) for name in FILES)


def _stamp(path: pathlib.Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
