"""The writer of run folders. A reader finds a consistent folder at any moment, also after a crash."""

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
from numpy.lib import format as npy
from numpy.typing import NDArray

from offbeat.errors import RunFolderError
from offbeat.files import overwrite, write_atomic, write_json
from offbeat.runs.folder.reader import UpdateRows, failed_early, read_status
from offbeat.runs.folder.schema import (
    CHECKPOINT,
    CLIENT_METRICS,
    CONFIG,
    LABEL_METRICS,
    LOCK,
    METRICS,
    SETTING,
    STATUS_FILE,
    UPDATE,
    UPDATES,
)
from offbeat.version import __version__

SHORT = 500  # characters of an error that fit into the last block of a full disk


def write_status(path: pathlib.Path, state: str, origin: Origin, **more: Any) -> None:
    """Write `status.json` of a run folder.

    Args:
        path: The run folder.
        state: running, finished, interrupted or failed.
        origin: Where the run found its data and modules.
        more: Further entries, such as the error of a failed run.
    """
    write_json(path / STATUS_FILE, {"state": state, **more, **asdict(origin), **environment()})


@dataclass(frozen=True)
class Origin:
    """Places on this machine that a run needs in addition to its config."""

    data_dir: str | None = None
    modules: str | None = None  # folder of the user's own modules

    @classmethod
    def of(cls, path: pathlib.Path) -> Origin:
        """Return the origin that a run folder records."""
        status = read_status(path) if (path / STATUS_FILE).is_file() else {}
        return cls(status.get("data_dir"), status.get("modules"))


class UpdateBuffer:
    """The log of completed jobs of a run without a folder, in memory."""

    def __init__(self) -> None:
        self._blocks: list[UpdateRows] = []
        self._pending: list[tuple[Any, ...]] = []

    def append(self, row: tuple[Any, ...]) -> None:
        """Add a row with the fields of `UPDATE`."""
        self._pending.append(row)
        if len(self._pending) >= UpdateLog.FLUSH:  # an array needs a tenth of the memory of its rows
            self._blocks.append(np.array(self._pending, dtype=UPDATE))
            self._pending.clear()

    def rows(self) -> UpdateRows:
        """Return all rows so far."""
        return np.concatenate([*self._blocks, np.array(self._pending, dtype=UPDATE)])


class UpdateLog:
    """An append-only .npy file. Its header is padded, so that the row count can be updated in place."""

    FLUSH = 4096

    def __init__(self, path: pathlib.Path, rows: int = 0) -> None:
        """Open the log for appending after the first `rows` rows and drop the rest."""
        self.rows = rows
        self._pending: list[tuple[Any, ...]] = []
        with contextlib.ExitStack() as opened:
            self._file: BinaryIO = opened.enter_context(path.open("r+b" if path.exists() else "w+b"))
            self._file.truncate(len(self._header()) + rows * UPDATE.itemsize)
            self._write_header()
            self._file.seek(0, os.SEEK_END)
            opened.pop_all()

    def append(self, row: tuple[Any, ...]) -> None:
        """Add a row with the fields of `UPDATE`."""
        self._pending.append(row)
        if len(self._pending) >= self.FLUSH:
            self.flush()

    def flush(self) -> None:
        """Write pending rows, then the row count: a reader never counts a row that is not there yet."""
        if self._pending:
            self._file.write(np.array(self._pending, dtype=UPDATE).tobytes())
            self._file.flush()
            self.rows += len(self._pending)
            self._pending.clear()
            self._write_header()
            self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Write pending rows and close the file."""
        if self._file.closed:
            return
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
    """An open run folder. Writing continues after the given number of metrics bytes and update rows."""

    def __init__(
        self,
        path: pathlib.Path,
        metrics_bytes: int,
        update_rows: int,
        origin: Origin | None = None,
        client_metrics_bytes: int = 0,
        label_metrics_bytes: int = 0,
    ) -> None:
        self.path = path
        self._grouped_bytes = {CLIENT_METRICS: client_metrics_bytes, LABEL_METRICS: label_metrics_bytes}
        self.created = False  # whether this run created the folder, rather than resumed it
        self._new: list[pathlib.Path] = []  # directories that this run created, innermost first
        with contextlib.ExitStack() as opened:
            self._lock = opened.enter_context((path / LOCK).open("w"))
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunFolderError(f"another process is writing to {path}") from None
            self.origin = origin or Origin.of(path)
            metrics = path / METRICS
            self._metrics: BinaryIO = opened.enter_context(metrics.open("r+b" if metrics.exists() else "w+b"))
            self._metrics.truncate(metrics_bytes)
            self._metrics.seek(0, os.SEEK_END)
            self.updates = UpdateLog(path / UPDATES, update_rows)
            for name, size in self._grouped_bytes.items():
                if (path / name).exists():
                    os.truncate(path / name, size)
            opened.pop_all()

    @classmethod
    def create(
        cls, path: pathlib.Path, config: str, origin: Origin, setting: Mapping[str, Any] | None = None
    ) -> RunFolder:
        """Create the folder of a new run.

        The config is written last: a folder that has one can be resumed.

        Args:
            path: The folder; it must be empty, not exist, or hold a run that failed before it got anywhere.
            config: The complete experiment as TOML.
            origin: Where the run finds its data and modules.
            setting: Content of `setting.json`.

        Raises:
            RunFolderError: The folder is not empty or cannot be written.
        """
        if _occupied(path) and failed_early(path):
            _clear(path)
        elif _occupied(path) and not _barely_begun(path):
            hint = f"; continue it with: offbeat resume {path}" if (path / CONFIG).is_file() else ""
            raise RunFolderError(f"{path} exists and is not empty{hint}")
        new = [place for place in (path, *path.parents) if not place.exists()]
        try:
            with contextlib.ExitStack() as opened:
                (path / CHECKPOINT).mkdir(parents=True, exist_ok=True)
                folder = opened.enter_context(contextlib.closing(cls(path, 0, 0, origin)))
                folder.created, folder._new = True, new
                if setting is not None:
                    write_atomic(path / SETTING, json.dumps(setting).encode())
                folder.status("running")
                write_atomic(path / CONFIG, config.encode())
                opened.pop_all()
            return folder
        except OSError as error:
            _clear(path)
            _remove(new)
            raise RunFolderError(f"cannot write to {path}: {error.strerror}") from error

    @property
    def metrics_bytes(self) -> int:
        """Current size of `metrics.jsonl`."""
        return self._metrics.tell()

    def metric(self, line: Mapping[str, Any]) -> None:
        """Append an evaluation to `metrics.jsonl`."""
        self._metrics.write((json.dumps(line) + "\n").encode())
        self._metrics.flush()
        self.updates.flush()

    def client_metrics(self, line: Mapping[str, Any], per_client: Mapping[str, NDArray[np.float64]]) -> None:
        """Append an evaluation per client to `client_metrics.jsonl`: one line with a list of values per metric."""
        self._grouped(CLIENT_METRICS, line, per_client)

    def label_metrics(self, line: Mapping[str, Any], per_label: Mapping[str, NDArray[np.float64]]) -> None:
        """Append an evaluation per class label to `label_metrics.jsonl`."""
        self._grouped(LABEL_METRICS, line, per_label)

    @property
    def grouped_bytes(self) -> dict[str, int]:
        """Current sizes of `client_metrics.jsonl` and `label_metrics.jsonl`."""
        return {
            "client_metrics_bytes": self._grouped_bytes[CLIENT_METRICS],
            "label_metrics_bytes": self._grouped_bytes[LABEL_METRICS],
        }

    def _grouped(self, name: str, line: Mapping[str, Any], columns: Mapping[str, NDArray[np.float64]]) -> None:
        if not columns:
            return
        text = json.dumps({"version": line["version"], "virtual_seconds": line["virtual_seconds"], **listed(columns)})
        with (self.path / name).open("ab") as file:
            file.write(f"{text}\n".encode())
        self._grouped_bytes[name] += len(text.encode()) + 1

    def status(self, state: str, **more: Any) -> None:
        """Write `status.json`; see `write_status`."""
        write_status(self.path, state, self.origin, **more)

    def fail(self, error: str, version: int) -> None:
        """Close the folder of a failed run. On a full disk, replace the status in the blocks that it has.

        Raises:
            OSError: The status cannot be written.
        """
        with contextlib.suppress(OSError):
            self.close()
        try:
            self.status("failed", error=error, version=version)
        except OSError:
            status = read_status(self.path) | {"state": "failed", "error": error[:SHORT], "version": version}
            overwrite(self.path / STATUS_FILE, json.dumps(status).encode())

    def close(self) -> None:
        """Close all files and release the lock, even if one of the files can no longer be written."""
        with contextlib.ExitStack() as files:
            files.callback(self._lock.close)
            files.callback((self.path / LOCK).unlink, missing_ok=True)
            files.callback(self.updates.close)
            files.callback(self._metrics.close)

    def discard(self) -> None:
        """Remove the folder and everything that this run created around it."""
        with contextlib.suppress(OSError):
            self.close()
        _clear(self.path)
        _remove(self._new)


def listed(columns: Mapping[str, NDArray[np.float64]]) -> dict[str, list[float | None]]:
    """Return values per client or label as lists for JSON; those that do not exist are None."""
    return {name: [None if np.isnan(v) else float(v) for v in values] for name, values in columns.items()}


def environment() -> dict[str, Any]:
    """Return the software versions and the hardware of this machine."""
    import torch  # only writers need it; reports must start without

    return {
        "offbeat": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _occupied(path: pathlib.Path) -> bool:
    try:
        return path.exists() and (not path.is_dir() or any(path.iterdir()))
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}") from error


def _barely_begun(path: pathlib.Path) -> bool:
    """Return whether the folder contains nothing but what a process leaves that is killed while it creates a run."""
    own = {CHECKPOINT, LOCK, METRICS, UPDATES, STATUS_FILE, SETTING}
    own |= {f".{name}.part" for name in (CONFIG, STATUS_FILE, SETTING)}
    content = {place.name: place for place in path.iterdir()} if path.is_dir() else {}
    empty = METRICS not in content or not content[METRICS].stat().st_size
    return CHECKPOINT in content and content.keys() <= own and empty and not any(content[CHECKPOINT].iterdir())


def _clear(path: pathlib.Path) -> None:
    """Remove the content of a folder as far as possible."""
    for place in path.iterdir() if path.is_dir() else ():
        with contextlib.suppress(OSError):
            shutil.rmtree(place) if place.is_dir() else place.unlink()


def _remove(folders: list[pathlib.Path]) -> None:
    """Remove empty folders, innermost first; keep those that others use by now."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
