"""A run of the server app, watched from outside: by its folder, and by asking Flower while there is none."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import pathlib
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from offbeat.deploy.flower_cli import ASK_SECONDS, ENDED, Link
from offbeat.errors import OffbeatError
from offbeat.flower import log, progress
from offbeat.runs.folder import in_use, read_json
from offbeat.runs.result import ProgressSnapshot

GONE_SECONDS = 2.0  # nobody at work in the folder for so long: the server app has died
END_SECONDS = 30.0  # for a server app to end in good order


class State(enum.Enum):
    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True)
class Order:
    """What is to be run, and where."""

    experiment: str  # its complete TOML
    out: pathlib.Path
    data_dir: pathlib.Path | None = None
    modules: pathlib.Path | None = None
    least: int | None = None  # nodes to wait for
    track: Sequence[str] = ()  # trackers by name, their places absolute


class Submission:
    """One server app, from its submission to its end."""

    def __init__(self, link: Link, order: Order) -> None:
        self.link, self.out, self.error = link, order.out, ""
        progress.forget(order.out)
        paths = {"out": order.out, "data-dir": order.data_dir, "modules": order.modules}
        told = {name: str(path.resolve()) for name, path in paths.items() if path is not None}
        said = {"experiment": json.dumps(order.experiment), "track": json.dumps(list(order.track))}
        self.run = link.submit({**said, "least": order.least or 0, **told})
        self._asked = time.monotonic()
        self._missed: float | None = None  # since when nobody is at work

    @property
    def glance(self) -> ProgressSnapshot | None:
        """How far it is; None before there is anything to be seen."""
        found = progress.read(self.out)
        return found[0] if found else None

    def look(self) -> State:
        """Where it stands; `error` says why it has failed."""
        if progress.read(self.out) is None:
            return self._ask()
        if in_use(self.out):
            self._missed = None
            return State.RUNNING
        status = read_json(self.out / "status.json")
        if status["state"] == "finished":
            return State.FINISHED
        now = time.monotonic()
        self._missed = self._missed or now
        if now - self._missed < GONE_SECONDS or (self.out / "summary.json").is_file():  # its last words
            return State.RUNNING
        self.error = status.get("error") or "the server app has ended without a word"
        return State.FAILED

    def interrupt(self, group: int) -> None:
        """Let the server app, which is in this process group, end in good order: with a checkpoint."""
        found = progress.read(self.out)
        if found is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(found[1]) == group:  # not one that was given the number since
                os.kill(found[1], signal.SIGTERM)
        until = time.monotonic() + END_SECONDS
        while in_use(self.out) and time.monotonic() < until:
            time.sleep(0.1)

    def _ask(self) -> State:
        if time.monotonic() - self._asked < ASK_SECONDS:
            return State.STARTING
        try:
            status, why = self.link.status(self.run)
        except OffbeatError:  # the SuperLink may be away for a moment
            return State.STARTING
        finally:
            self._asked = time.monotonic()
        if not status.startswith(ENDED) or progress.read(self.out) is not None:
            return State.STARTING
        self.error = why.removeprefix("ServerApp failed with exception: ") or f"the run is {status}"
        return State.FAILED


@dataclass
class Losses:
    """Trips that have failed, as events.jsonl tells."""

    folder: pathlib.Path
    arrived: int = 0
    clients: set[int] = field(default_factory=set)  # that have failed
    _client_of: dict[int, int] = field(default_factory=dict)
    _place: int = 0

    def __post_init__(self) -> None:
        self._place = self._size()

    def news(self) -> list[str]:
        """What has happened since the last look, one line a failure."""
        self._place = min(self._place, self._size())  # a run that goes on cuts its log
        if not (self.folder / log.TRIPS).is_file():
            return []
        with (self.folder / log.TRIPS).open("rb") as file:
            file.seek(self._place)
            whole, _, _ = file.read().rpartition(b"\n")
        self._place += len(whole) + bool(whole)
        told = []
        for line in map(json.loads, whole.splitlines()):
            if "sent" in line:
                self._client_of[line["sent"]] = line["client"]
            elif "arrived" in line:
                self.arrived += 1
            elif "lost" in line:
                client = self._client_of.get(line["lost"], -1)
                self.clients.add(client)
                told.append(f"client {client}: {line['reason']}" if client >= 0 else line["reason"])
        return told

    def _size(self) -> int:
        file = self.folder / log.TRIPS
        return file.stat().st_size if file.is_file() else 0
