"""What happened in a deployment, in the order in which the loop saw it: enough to let it happen again.

events.jsonl holds one line for everything that passes between the loop and its transport.

{"sent": job, "client": i, "version": v, "node": id, "at": seconds}
{"nodes": [clients that are there], "at": seconds}
{"arrived": job, "bytes": wire bytes, "offset": …, "length": …, "sha256": …, "at": seconds}
{"lost": job, "reason": text, "at": seconds}
{"tick": client or null, "at": seconds}

payloads.bin holds the payloads of the updates, one behind the other.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from offbeat.errors import RunFolderError
from offbeat.server.events import Arrival, Event, Lost, Tick

TRIPS, PAYLOADS = "events.jsonl", "payloads.bin"


class TripLog:
    """An open log.  A new one begins empty; one that is gone on with is cut where its last checkpoint was made."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._trips = (folder / TRIPS).open("ab")
        self._payloads = (folder / PAYLOADS).open("ab")

    def mark(self) -> tuple[int, int]:
        """How long it is, safely on disk."""
        for file in (self._payloads, self._trips):
            file.flush()
            os.fsync(file.fileno())
        return self._trips.tell(), self._payloads.tell()

    def cut(self, trips: int, payloads: int) -> None:
        """Drop what came after that mark: it will happen again."""
        for file, length in ((self._trips, trips), (self._payloads, payloads)):
            file.truncate(length)
            file.seek(length)

    def sent(self, job: int, client: int, version: int, node: int | None, at: float) -> None:
        self._write({"sent": job, "client": client, "version": version, "node": str(node), "at": at})

    def nodes(self, online: Sequence[int], at: float) -> None:
        self._write({"nodes": sorted(online), "at": at})

    def event(self, event: Event, payload: bytes, at: float) -> None:
        if isinstance(event, Arrival):
            offset, digest = self._payloads.tell(), hashlib.sha256(payload).hexdigest()
            self._payloads.write(payload)
            self._payloads.flush()
            self._write(
                {"arrived": event.job.id, "bytes": event.update.wire_bytes, "offset": offset, "length": len(payload),
                 "sha256": digest, "at": at}
            )  # fmt: skip
        elif isinstance(event, Lost):
            unreadable = {"unreadable": True} if event.unreadable else {}
            self._write({"lost": event.job.id, "reason": event.reason, "at": at, **unreadable})
        else:
            assert isinstance(event, Tick)
            self._write({"tick": event.client, "at": at})

    def close(self) -> None:
        self._trips.close()
        self._payloads.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._trips.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
        self._trips.flush()  # it is read while the run goes on


def read(folder: pathlib.Path) -> Iterator[dict[str, Any]]:
    """The lines of a log, in order; a torn last line is left out."""
    try:
        text = (folder / TRIPS).read_bytes()
    except OSError as error:
        raise RunFolderError(f"{folder} has no log of a deployment ({TRIPS})") from error
    for line in text.splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)


def payload(folder: pathlib.Path, line: dict[str, Any]) -> bytes:
    """What an `arrived` line is about."""
    with (folder / PAYLOADS).open("rb") as file:
        file.seek(line["offset"])
        body = file.read(line["length"])
    if hashlib.sha256(body).hexdigest() != line["sha256"]:
        raise RunFolderError(f"{folder / PAYLOADS}: the payload of job {line['arrived']} is damaged")
    return body
