"""The run folder: what a run leaves behind, written so that it is whole at any moment.

config.toml        the complete experiment
metrics.jsonl      one line an evaluation
updates.npy        one row a trip that ended (`numpy.load`, also while the run goes on)
model.safetensors  the last x, under the model's own parameter names
summary.json       the result, once there is one
status.json        running, finished, interrupted or failed; versions and hardware
setting.json       what the config does not say: who has which examples, who talks to whom
checkpoint/        what `resume` needs
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pathlib
import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.lib import format as npy

from offbeat.engine.gate import REASONS
from offbeat.errors import RunFolderError
from offbeat.version import __version__

UPDATE = np.dtype(
    [
        ("sent", "<f8"),  # virtual seconds
        ("time", "<f8"),  # when it arrived or was given up
        ("client", "<i4"),
        ("version", "<i4"),  # of the model that it started from
        ("staleness", "<i4"),
        ("steps", "<i4"),
        ("bytes", "<i8"),
        ("status", "u1"),  # see STATUS
    ]
)
STATUS = ("aggregated", "lost", "late", *REASONS)
SWEEP = "sweep.json"  # in the folder of a sweep: its runs
SETTING = "setting.json"  # what a report needs beside the config: who has what, who talks to whom


def write_atomic(path: pathlib.Path, body: bytes) -> None:
    """The file is there whole or as it was before."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as out:
            out.write(body)
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
    write_atomic(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: pathlib.Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunFolderError(f"{path.parent} is not a run folder: it has no {path.name}") from error
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error
    return value


def write_status(path: pathlib.Path, state: str, origin: Origin, **more: Any) -> None:
    write_json(path / "status.json", {"state": state, **more, **asdict(origin), **environment()})


@dataclass(frozen=True)
class Origin:
    """Where on this machine a run took what it needs beside its config."""

    data_dir: str | None = None
    modules: str | None = None  # folder of the user's own modules

    @classmethod
    def of(cls, path: pathlib.Path) -> Origin:
        """As recorded in a run folder."""
        status = read_json(path / "status.json") if (path / "status.json").is_file() else {}
        return cls(status.get("data_dir"), status.get("modules"))


class UpdateLog:
    """Rows appended to a .npy file, whose header has room for the count to grow in place."""

    FLUSH = 4096

    def __init__(self, path: pathlib.Path, rows: int = 0) -> None:
        """Open for appending after the first `rows` rows; what is behind them is dropped."""
        self.rows = rows
        self._pending: list[tuple[Any, ...]] = []
        with contextlib.ExitStack() as opened:
            self._file: BinaryIO = opened.enter_context(path.open("r+b" if path.exists() else "w+b"))
            self._file.truncate(len(self._header()) + rows * UPDATE.itemsize)
            self._write_header()
            self._file.seek(0, os.SEEK_END)
            opened.pop_all()

    def append(self, row: tuple[Any, ...]) -> None:
        self._pending.append(row)
        if len(self._pending) >= self.FLUSH:
            self.flush()

    def flush(self) -> None:
        """Rows first, then the count: a reader never sees a row that is not there."""
        if self._pending:
            self._file.write(np.array(self._pending, dtype=UPDATE).tobytes())
            self._file.flush()
            self.rows += len(self._pending)
            self._pending.clear()
            self._write_header()
            self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._file.close()

    def _header(self) -> bytes:
        header = io.BytesIO()
        npy.write_array_header_1_0(
            header, {"descr": npy.dtype_to_descr(UPDATE), "fortran_order": False, "shape": (self.rows,)}
        )
        return header.getvalue()

    def _write_header(self) -> None:
        self._file.seek(0)
        self._file.write(self._header())
        self._file.flush()


class RunFolder:
    """An open run folder, to be continued after the given number of metrics bytes and update rows."""

    def __init__(self, path: pathlib.Path, metrics_bytes: int, update_rows: int, origin: Origin | None = None) -> None:
        self.path = path
        self.created = False  # by this very run, not by one that it goes on with
        self._new: list[pathlib.Path] = []  # folders that this run has made, innermost first
        with contextlib.ExitStack() as opened:
            self._lock = opened.enter_context((path / ".lock").open("w"))
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunFolderError(f"another process is at work in {path}") from None
            self.origin = origin or Origin.of(path)
            metrics = path / "metrics.jsonl"
            self._metrics: BinaryIO = opened.enter_context(metrics.open("r+b" if metrics.exists() else "w+b"))
            self._metrics.truncate(metrics_bytes)
            self._metrics.seek(0, os.SEEK_END)
            self.updates = UpdateLog(path / "updates.npy", update_rows)
            opened.pop_all()

    @classmethod
    def create(
        cls, path: pathlib.Path, config: str, origin: Origin, setting: Mapping[str, Any] | None = None
    ) -> RunFolder:
        """Begin a new run.  The config, which makes it a run folder, is written last: what has one can be resumed."""
        if _taken(path) and not _barely_begun(path):
            hint = f"; continue it with: offbeat resume {path}" if (path / "config.toml").is_file() else ""
            raise RunFolderError(f"{path} exists and is not empty{hint}")
        new = [place for place in (path, *path.parents) if not place.exists()]
        try:
            with contextlib.ExitStack() as opened:
                (path / "checkpoint").mkdir(parents=True, exist_ok=True)
                folder = opened.enter_context(contextlib.closing(cls(path, 0, 0, origin)))
                folder.created, folder._new = True, new
                if setting is not None:
                    write_atomic(path / SETTING, json.dumps(setting).encode())
                folder.status("running")
                write_atomic(path / "config.toml", config.encode())
                opened.pop_all()
            return folder
        except OSError as error:
            _clear(path)
            _remove(new)
            raise RunFolderError(f"cannot write into {path}: {error.strerror}") from error

    @property
    def metrics_bytes(self) -> int:
        return self._metrics.tell()

    def metric(self, line: Mapping[str, Any]) -> None:
        self._metrics.write((json.dumps(line) + "\n").encode())
        self._metrics.flush()
        self.updates.flush()

    def status(self, state: str, **more: Any) -> None:
        write_status(self.path, state, self.origin, **more)

    def close(self) -> None:
        """All of it, also when one of the files can no longer be written."""
        with contextlib.ExitStack() as files:
            files.callback(self._lock.close)
            files.callback((self.path / ".lock").unlink, missing_ok=True)
            files.callback(self.updates.close)
            files.callback(self._metrics.close)

    def discard(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(OSError):
            self.close()
        _clear(self.path)
        _remove(self._new)


def name_of(path: pathlib.Path) -> str:
    """A run in a sweep goes by its folder within the sweep's, another by its folder."""
    place = path.resolve()
    for sweep in place.parents[:2]:
        if (sweep / SWEEP).is_file():
            return place.relative_to(sweep).as_posix()
    return place.name


def in_use(path: pathlib.Path) -> bool:
    """Whether some process is at work in a run folder at this moment."""
    try:
        with os.fdopen(os.open(path / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is none, or it is nobody's lock
        return False
    return False


def _taken(path: pathlib.Path) -> bool:
    try:
        return path.exists() and (not path.is_dir() or any(path.iterdir()))
    except OSError as error:
        raise RunFolderError(f"cannot look into {path}: {error.strerror}") from error


def _barely_begun(path: pathlib.Path) -> bool:
    """Whether this is all that a process has left that was killed while it made a run folder."""
    ours = {"checkpoint", ".lock", "metrics.jsonl", "updates.npy", "status.json", SETTING, ".config.toml.part",
            ".status.json.part", f".{SETTING}.part"}  # fmt: skip
    found = {place.name: place for place in path.iterdir()} if path.is_dir() else {}
    empty = "metrics.jsonl" not in found or not found["metrics.jsonl"].stat().st_size
    return "checkpoint" in found and found.keys() <= ours and empty and not any(found["checkpoint"].iterdir())


def _clear(path: pathlib.Path) -> None:
    """Remove what lies in a folder, as far as that can be done."""
    for place in path.iterdir() if path.is_dir() else ():
        with contextlib.suppress(OSError):
            shutil.rmtree(place) if place.is_dir() else place.unlink()


def _remove(places: list[pathlib.Path]) -> None:
    """Remove folders, innermost first, unless somebody else uses them by now."""
    for place in places:
        with contextlib.suppress(OSError):
            place.rmdir()


def environment() -> dict[str, Any]:
    """What the figures were made with."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "offbeat": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
    }
