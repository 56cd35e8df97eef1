"""What happens under a folder of runs, noticed by looking at sizes and times of files again and again."""

from __future__ import annotations

import hashlib
import os
import pathlib
import threading
from dataclasses import dataclass, field

from offbeat.report.read import Record, find, named, read
from offbeat.runs.folder import in_use

FILES = ("config.toml", "status.json", "metrics.jsonl", "summary.json")
Signature = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True)
class Change:
    """What a look has found."""

    changed: list[str]
    """Runs that are new or are not as they were."""
    other: bool
    """Whether there are other runs than before, or other names."""


@dataclass
class Watched:
    """The runs under a folder, by names that say nothing and hold for as long as a run is the same: also when the
    server is started again, but not for another run in the same folder."""

    root: pathlib.Path
    records: dict[str, Record] = field(default_factory=dict)
    """With labels that tell them apart."""
    _read: dict[str, Record] = field(default_factory=dict)
    _signatures: dict[str, tuple[Signature, bool]] = field(default_factory=dict)
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def look(self) -> Change:
        """Read anew what has changed."""
        with self._one_at_a_time:
            before = {name: record.label for name, record in self.records.items()}
            found: dict[str, Record] = {}
            signatures: dict[str, tuple[Signature, bool]] = {}
            changed: list[str] = []
            for path in find(self.root):
                stamps = tuple(_stamp(path / file) for file in FILES)
                name = _name(path.relative_to(self.root), stamps[0])
                signatures[name] = stamps, in_use(path)
                if name in self._read and self._signatures.get(name) == signatures[name]:
                    found[name] = self._read[name]
                else:
                    found[name] = read(path)
                    changed.append(name)
            self._read, self._signatures = found, signatures
            self.records = dict(zip(found, named(list(found.values())), strict=True)) if found else {}
            return Change(changed, {name: record.label for name, record in self.records.items()} != before)


def _name(path: pathlib.Path, begun: tuple[int, ...] | None) -> str:
    """A run's config is written once, when it is begun."""
    return hashlib.sha256(os.fsencode(path) + repr(begun).encode()).hexdigest()[:16]


def _stamp(path: pathlib.Path) -> tuple[int, ...] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino
