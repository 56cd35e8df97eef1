"""The event log of a deployment, complete enough to replay it.

events.jsonl holds one line for everything that passes between the server loop and its transport, in order:

{"sent": job, "client": i, "version": v, "node": id, "at": seconds}
{"nodes": [available clients], "at": seconds}
{"arrived": job, "bytes": wire bytes, "offset": …, "length": …, "sha256": …, "at": seconds}
{"lost": job, "reason": text, "at": seconds}
{"tick": client or null, "at": seconds}

payloads.bin holds the payloads of the updates, concatenated.
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

EVENTS, PAYLOADS = "events.jsonl", "payloads.bin"


class EventLog:
    """An event log that is open for appending.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._events = (folder / EVENTS).open("ab")
        self._payloads = (folder / PAYLOADS).open("ab")

    def sync(self) -> tuple[int, int]:
        """Force both files to disk and return their lengths, to which a resumed run truncates them."""
        for file in (self._payloads, self._events):
            file.flush()
            os.fsync(file.fileno())
        return self._events.tell(), self._payloads.tell()

    def truncate(self, events: int, payloads: int) -> None:
        """Drop everything after these lengths: a resumed run repeats it."""
        for file, length in ((self._events, events), (self._payloads, payloads)):
            file.truncate(length)
            file.seek(length)

    def sent(self, job: int, client: int, version: int, node: int | None, at: float) -> None:
        """Record a job that was sent."""
        self._write({"sent": job, "client": client, "version": version, "node": str(node), "at": at})

    def nodes(self, available: Sequence[int], at: float) -> None:
        """Record the available clients."""
        self._write({"nodes": sorted(available), "at": at})

    def event(self, event: Event, payload: bytes, at: float) -> None:
        """Record an event and, for an arrival, the payload of the update."""
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
        """Close both files."""
        self._events.close()
        self._payloads.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._events.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
        self._events.flush()  # supervisors read it while the run is active


def read(folder: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log in order, without an incomplete last line.

    Raises:
        RunFolderError: There is no log.
    """
    try:
        text = (folder / EVENTS).read_bytes()
    except OSError as error:
        raise RunFolderError(f"{folder} has no deployment log ({EVENTS})") from error
    for line in text.splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)


def read_payload(folder: pathlib.Path, line: dict[str, Any]) -> bytes:
    """Return the payload of an `arrived` line.

    Raises:
        RunFolderError: The payload does not match its checksum.
    """
    with (folder / PAYLOADS).open("rb") as file:
        file.seek(line["offset"])
        body = file.read(line["length"])
    if hashlib.sha256(body).hexdigest() != line["sha256"]:
        raise RunFolderError(f"{folder / PAYLOADS} is damaged: wrong checksum for the payload of job {line['arrived']}")
    return body
