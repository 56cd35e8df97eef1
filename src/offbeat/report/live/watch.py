"""Detect changes of the runs under a folder by polling the sizes and times of their files."""

from __future__ import annotations

import hashlib
import os
import pathlib
import threading
from dataclasses import dataclass, field

from offbeat.report.read import Record, distinguish, find, read
from offbeat.runs.folder import CONFIG, METRICS, STATUS_FILE, SUMMARY, in_use

FILES = (CONFIG, STATUS_FILE, METRICS, SUMMARY)
Stamp = tuple[int, ...] | None
Signature = tuple[tuple[Stamp, ...], bool]


@dataclass(frozen=True)
class Change:
    """The result of a poll."""

    changed: list[str]
    """IDs of the runs that are new or have changed."""
    relisted: bool
    """Whether runs were added, removed or relabeled."""


@dataclass
class WatchedFolder:
    """The runs under a folder, by ID.

    An ID reveals nothing about the path. It survives a restart of the server, but a new run in the same folder gets a
    new one.
    """

    root: pathlib.Path
    records: dict[str, Record] = field(default_factory=dict)
    """The runs, with distinct labels."""
    _read: dict[str, Record] = field(default_factory=dict)
    _signatures: dict[str, Signature] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def poll(self) -> Change:
        """Read the runs that have changed since the last poll."""
        with self._lock:
            before = {name: record.label for name, record in self.records.items()}
            found: dict[str, Record] = {}
            signatures: dict[str, Signature] = {}
            changed: list[str] = []
            for path in find(self.root):
                stamps = tuple(_stamp(path / file) for file in FILES)
                name = _id(path.relative_to(self.root), stamps[0])
                signatures[name] = stamps, in_use(path)
                if name in self._read and self._signatures.get(name) == signatures[name]:
                    found[name] = self._read[name]
                else:
                    found[name] = read(path)
                    changed.append(name)
            self._read, self._signatures = found, signatures
            self.records = dict(zip(found, distinguish(list(found.values())), strict=True)) if found else {}
            return Change(changed, {name: record.label for name, record in self.records.items()} != before)


def _id(path: pathlib.Path, config: Stamp) -> str:
    """Return the ID of a run from its path and the stamp of its config, which is written only once."""
    return hashlib.sha256(os.fsencode(path) + repr(config).encode()).hexdigest()[:16]


def _stamp(path: pathlib.Path) -> Stamp:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino
