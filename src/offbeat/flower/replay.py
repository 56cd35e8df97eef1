"""A deployment once more, from its log, through the same loop: the same x, bit for bit."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from offbeat.errors import RunFolderError
from offbeat.flower import log
from offbeat.flower.nodes import Nodes
from offbeat.flower.wire import Dialect
from offbeat.messages import Job
from offbeat.server.events import Arrival, Event, Lost, Tick
from offbeat.server.loop import Loop


class Ended(Exception):  # noqa: N818 — no error
    """The log has come to its end."""


class Replayed:
    """A transport that reports what a log says, and insists that the loop sends what it sent then."""

    untrusted = True

    def __init__(self, folder: pathlib.Path, dialect: Dialect, nodes: Nodes) -> None:
        self.folder, self.dialect, self.nodes = folder, dialect, nodes
        self.lines = list(log.read(folder))
        self.place = 0
        self.now = 0.0
        self.bytes_down = 0
        self.updates = 0
        self._out: dict[int, tuple[Job, float]] = {}
        self._nodes()

    def send(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            line = self._line()
            found = (line.get("sent"), line.get("client"), line.get("version"))
            if found != (job.id, job.client, job.version):
                raise RunFolderError(
                    f"{self.folder / log.TRIPS}, line {self.place}: the loop sends job {job.id} to client {job.client} "
                    f"from version {job.version}, the log says {line}"
                )
            self._out[job.id] = job, self.now

    def wake(self, at: float, client: int | None = None) -> None:
        """The log knows when."""

    def receive(self) -> Event:
        self._nodes()
        line = self._line()
        self.now = line["at"]
        if "tick" in line:
            return Tick(line["tick"])
        if "lost" in line:
            job, sent = self._out.pop(line["lost"])
            return Lost(job, sent, line["reason"], line.get("unreadable", False))
        job, sent = self._out.pop(line["arrived"])
        self.updates += 1
        update = self.dialect.read(job, log.payload(self.folder, line))
        return Arrival(job, dataclasses.replace(update, wire_bytes=line["bytes"]), sent)

    def _nodes(self) -> None:
        while self.place < len(self.lines) and "nodes" in self.lines[self.place]:
            line = self._line()
            self.now = line["at"]
            self.nodes.online = frozenset(line["nodes"])

    def _line(self) -> dict[str, Any]:
        if self.place == len(self.lines):
            raise Ended
        self.place += 1
        return self.lines[self.place - 1]


def turned(loop: Loop, version: int) -> bool:
    """Turn the loop of a `Replayed` to a version; False when the log ends before."""
    loop.start()
    with contextlib.suppress(Ended):
        while loop.algorithm.version < version:
            loop.turn()
    return loop.algorithm.version == version
