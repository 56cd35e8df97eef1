"""Readers of what trackers wrote, with the trackers' own libraries where possible."""

from __future__ import annotations

import json
import pathlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.support import wait_until

from offbeat.runs.callbacks import TRACKERS, Tracker


@dataclass
class Read:
    """One run as stored by a tracker."""

    id: str
    points: list[tuple[int, str, float]] = field(default_factory=list)  # version, name, value; in the order on disk
    times: dict[int, float] = field(default_factory=dict)  # seconds since the first, by version
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, float] = field(default_factory=dict)
    state: str = ""


class Reader(ABC):
    name: ClassVar[str]
    digits = 1e-12  # relative, with which numbers are kept
    flat = False  # the settings have dotted names

    def tracker(self, place: pathlib.Path | None = None) -> Tracker:
        return TRACKERS[self.name](place)

    def die(self) -> None:
        """Drop everything that is open, as a dying process does."""
        return

    @abstractmethod
    def read(self, home: pathlib.Path) -> dict[str, list[Read]]:
        """Return all runs by name that were stored next to the run folders in a folder."""


class TensorBoardReader(Reader):
    name = "tensorboard"
    digits = 1e-6

    def read(self, home: pathlib.Path) -> dict[str, list[Read]]:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found: dict[str, list[Read]] = {}
        root = home / "tensorboard"
        for folder in sorted({file.parent for file in root.rglob("events.*")}):
            events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
            events.Reload()
            read = Read(folder.relative_to(root).as_posix())
            scalars = [
                (e.step, tag, e.value, e.wall_time) for tag in events.Tags()["scalars"] for e in events.Scalars(tag)
            ]
            read.points = [(step, tag, value) for step, tag, value, _ in scalars]
            first = min(time for *_, time in scalars)
            read.times = {step: time - first for step, _, _, time in scalars}
            for tag in ("config", "summary"):
                if f"{tag}/text_summary" in events.Tags()["tensors"]:
                    (event,) = events.Tensors(f"{tag}/text_summary")
                    setattr(read, tag, json.loads(event.tensor_proto.string_val[0]))
            read.state = "finished" if read.summary else ""
            found.setdefault(read.id, []).append(read)
        return found


class MLflowReader(Reader):
    name = "mlflow"
    flat = True

    def read(self, home: pathlib.Path) -> dict[str, list[Read]]:
        import sqlite3

        found: dict[str, list[Read]] = {}
        with sqlite3.connect(home / "mlflow.db") as store:
            for run, name, state in store.execute("SELECT run_uuid, name, status FROM runs ORDER BY start_time"):
                read = Read(run, state={"FINISHED": "finished", "KILLED": "interrupted"}.get(state, state.lower()))
                rows = list(store.execute("SELECT step, key, value, timestamp FROM metrics WHERE run_uuid = ?", (run,)))
                first = min((time for *_, time in rows), default=0)
                for step, key, value, time in rows:
                    if key.startswith("summary/"):
                        read.summary[key.removeprefix("summary/")] = value
                    else:
                        read.points.append((step, key, value))
                        read.times[step] = (time - first) / 1000
                read.config = dict(store.execute("SELECT key, value FROM params WHERE run_uuid = ?", (run,)))
                found.setdefault(name, []).append(read)
        store.close()
        return found


class WandBReader(Reader):
    name = "wandb"

    def die(self) -> None:
        import wandb

        wandb.teardown()

    def read(self, home: pathlib.Path) -> dict[str, list[Read]]:
        """Return all runs by name; folders with the same id are one run, as after an upload."""
        found: dict[str, list[Read]] = {}
        for file in sorted(home.glob("wandb/offline-run-*/*.wandb")):
            read, name = Read(file.stem.removeprefix("run-")), ""
            for record in _whole(file):
                what = record.WhichOneof("record_type")
                if what == "run" and record.run.display_name:
                    name = record.run.display_name
                    read.config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                elif what == "history":
                    line = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                    step = line["_step"]
                    read.points += [(step, k, v) for k, v in line.items() if not k.startswith("_") and k != "version"]
                elif what == "summary":
                    updates = record.summary.update
                    read.summary |= {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in updates}
                elif what == "exit":
                    read.state = {0: "finished", 255: "interrupted"}.get(record.exit.exit_code, "failed")
            same = [other for other in found.setdefault(name, []) if other.id == read.id]
            if same:
                same[0].points += read.points
                same[0].state, same[0].summary = read.state, read.summary
            else:
                found[name].append(read)
        return found


def _whole(file: pathlib.Path) -> list[Any]:
    """Return all records of a finished run; W&B writes them in a separate process, which may be late."""
    wait_until(lambda: any(record.WhichOneof("record_type") == "exit" for record in _records(file)))
    return list(_records(file))


def _records(file: pathlib.Path) -> Iterator[Any]:
    """Yield the records of W&B's file, a LevelDB log with blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    raw, place, body = file.read_bytes(), 7, b""
    while place + 7 <= len(raw):
        left = 32768 - place % 32768
        _, length, kind = struct.unpack_from("<IHB", raw, place)
        if left < 7 or kind == 0:
            place += left
            continue
        if place + 7 + length > len(raw):  # it is just being written
            return
        body += raw[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(body)
            body = b""
            yield record


READERS: dict[str, type[Reader]] = {reader.name: reader for reader in (TensorBoardReader, MLflowReader, WandBReader)}
