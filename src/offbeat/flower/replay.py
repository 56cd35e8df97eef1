"""Replay a deployment from its event log: the same loop, the same x, bit for bit."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from offbeat.errors import RunFolderError
from offbeat.flower import log
from offbeat.flower.nodes import NodeRegistry
from offbeat.flower.wire import WireFormat
from offbeat.messages import Job
from offbeat.server.events import Arrival, Event, Lost, Tick
from offbeat.server.loop import Loop


class EndOfLog(Exception):  # noqa: N818 — not an error
    """The log has no further lines."""


class ReplayTransport:
    """A transport that delivers the events of a log and checks that the loop sends the jobs that it sent then.

    Args:
        folder: The run folder.
        wire: Decodes the payloads.
        nodes: Kept up to date with the clients that were available.
    """

    untrusted = True

    def __init__(self, folder: pathlib.Path, wire: WireFormat, nodes: NodeRegistry) -> None:
        self.folder, self.wire, self.nodes = folder, wire, nodes
        self.lines = list(log.read(folder))
        self.line_number = 0
        self.now = 0.0
        self.bytes_down = 0
        self.updates = 0
        self._in_flight: dict[int, tuple[Job, float]] = {}
        self._read_nodes()

    def send(self, jobs: Sequence[Job]) -> None:
        """Check that these jobs are the next ones in the log."""
        for job in jobs:
            line = self._read_line()
            logged = (line.get("sent"), line.get("client"), line.get("version"))
            if logged != (job.id, job.client, job.version):
                raise RunFolderError(
                    f"{self.folder / log.EVENTS}, line {self.line_number}: expected job {job.id} of version "
                    f"{job.version} for client {job.client}, found {line}; was it written by another release?"
                )
            self._in_flight[job.id] = job, self.now

    def wake(self, at: float, client: int | None = None) -> None:
        """Do nothing: the log contains the ticks."""

    def receive(self) -> Event:
        """Return the next event of the log."""
        self._read_nodes()
        line = self._read_line()
        self.now = line["at"]
        if "tick" in line:
            return Tick(line["tick"])
        if "lost" in line:
            job, sent = self._in_flight.pop(line["lost"])
            return Lost(job, sent, line["reason"], line.get("unreadable", False))
        job, sent = self._in_flight.pop(line["arrived"])
        self.updates += 1
        update = self.wire.decode_payload(job, log.read_payload(self.folder, line))
        return Arrival(job, dataclasses.replace(update, wire_bytes=line["bytes"]), sent)

    def _read_nodes(self) -> None:
        while self.line_number < len(self.lines) and "nodes" in self.lines[self.line_number]:
            line = self._read_line()
            self.now = line["at"]
            self.nodes.online = frozenset(line["nodes"])

    def _read_line(self) -> dict[str, Any]:
        if self.line_number == len(self.lines):
            raise EndOfLog
        self.line_number += 1
        return self.lines[self.line_number - 1]


def replay_to(loop: Loop, version: int) -> bool:
    """Run a loop on a `ReplayTransport` up to a version and return whether the log reaches it."""
    loop.start()
    with contextlib.suppress(EndOfLog):
        while loop.algorithm.version < version:
            loop.turn()
    return loop.algorithm.version == version
