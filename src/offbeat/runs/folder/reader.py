"""The reader of run folders, shared by resume, reports, exports, benchmarks and fault tests.

Every function raises `UnreadableFileError` for a file that is missing, damaged or of the wrong type; what a file
contains cannot cause any other error. The reader opens plain files only and follows no symbolic links, because a report
may show their content to others.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import stat
import tomllib
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from offbeat.errors import RunFolderError, first_line
from offbeat.runs.folder.schema import (
    BEFORE_RESULT,
    CHECKPOINT,
    CLIENT_METRICS,
    CONFIG,
    FIRST_UPDATE,
    LABEL_METRICS,
    LOCK,
    METRICS,
    SETTING,
    STATUS,
    STATUS_FILE,
    SUMMARY,
    SWEEP,
    UPDATE,
    UPDATES,
)

MAX_TEXT_BYTES = 1 << 28

UpdateRows = NDArray[np.void]
"""Rows of `updates.npy`, with the dtype `UPDATE`."""


class UnreadableFileError(RunFolderError):
    """A file of a run folder is missing, damaged or of the wrong type.

    Args:
        path: The file.
        problem: What is wrong with it, to follow its name in a sentence.
        missing: Whether there is no such file.
    """

    def __init__(self, path: pathlib.Path, problem: str, *, missing: bool = False) -> None:
        super().__init__(f"{path} {problem}")
        self.problem = f"{path.name} {problem}"  # does not reveal where the folder is
        self.missing = missing


def read_text(path: pathlib.Path, size: int = MAX_TEXT_BYTES) -> str:
    """Return the text of a plain file.

    Args:
        path: The file.
        size: Read at most this many bytes.
    """
    try:
        with _open(path) as file:
            if size == MAX_TEXT_BYTES and os.fstat(file.fileno()).st_size > size:
                raise OSError(f"it is larger than {size:,} bytes")
            return file.read(size).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Return the JSON object in a file of a run folder."""
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UnreadableFileError(path, f"is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnreadableFileError(path, "does not contain a JSON object")
    return value


def read_config(folder: pathlib.Path) -> dict[str, Any]:
    """Return the experiment of a run as a table."""
    path = folder / CONFIG
    try:
        return tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UnreadableFileError(path, f"is not valid TOML: {error}") from error


def read_setting(folder: pathlib.Path) -> dict[str, Any]:
    """Return the facts about a run that its config does not state."""
    return read_json(folder / SETTING)


def read_status(folder: pathlib.Path) -> dict[str, Any]:
    """Return the status of a run: its state, versions and hardware."""
    return read_json(folder / STATUS_FILE)


def read_summary(folder: pathlib.Path) -> dict[str, Any]:
    """Return the summary of a finished run."""
    return read_json(folder / SUMMARY)


def is_finished(folder: pathlib.Path) -> bool:
    """Return whether the run has a result."""
    return (folder / SUMMARY).is_file()


def is_resumable(folder: pathlib.Path) -> bool:
    """Return whether a folder has a run that is worth resuming, rather than one that failed before it got anywhere."""
    return (folder / CONFIG).is_file() and not failed_early(folder)


def failed_early(folder: pathlib.Path) -> bool:
    """Return whether the run failed before its second evaluation and its first checkpoint; a new run may replace it.

    A folder with any other files, such as the log of a deployment, is not replaced.
    """
    try:
        if read_status(folder).get("state") != "failed":
            return False
        content = {place.name for place in folder.iterdir()}
        evaluations = sum(1 for _ in iter_metrics(folder, in_progress=True))
        checkpoints = any((folder / CHECKPOINT).iterdir()) if CHECKPOINT in content else False
    except (OSError, UnreadableFileError):
        return False
    return content <= BEFORE_RESULT and evaluations < 2 and not checkpoints


def iter_metrics(
    folder: pathlib.Path, size: int = MAX_TEXT_BYTES, *, in_progress: bool = False, name: str = METRICS
) -> Iterator[dict[str, Any]]:
    """Yield the evaluations of a run, oldest first.

    Args:
        folder: The run folder.
        size: Read only this many bytes, such as the length at a checkpoint.
        in_progress: Ignore a last line that is still being written.
        name: Name of the file.
    """
    path = folder / name
    text = read_text(path, size)
    lines = text.split("\n")
    if not lines[-1] or in_progress:
        lines.pop()
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UnreadableFileError(path, f"is damaged: line {number} is not valid JSON: {error}") from error
        if not isinstance(value, dict):
            raise UnreadableFileError(path, f"is damaged: line {number} is not an evaluation: {line[:60]!r}")
        yield value


def read_metrics(
    folder: pathlib.Path, size: int = MAX_TEXT_BYTES, *, in_progress: bool = False
) -> list[dict[str, Any]]:
    """Return the evaluations of a run; see `iter_metrics`."""
    return list(iter_metrics(folder, size, in_progress=in_progress))


def read_client_metrics(folder: pathlib.Path, size: int = MAX_TEXT_BYTES) -> list[dict[str, Any]]:
    """Return the evaluations per client, each with a list of values per metric; none if the run has no such file."""
    return _read_grouped(folder, CLIENT_METRICS, size)


def read_label_metrics(folder: pathlib.Path, size: int = MAX_TEXT_BYTES) -> list[dict[str, Any]]:
    """Return the evaluations per class label, each with a list of values per metric; none without such a file."""
    return _read_grouped(folder, LABEL_METRICS, size)


def _read_grouped(folder: pathlib.Path, name: str, size: int) -> list[dict[str, Any]]:
    if not (folder / name).is_file():
        return []
    return list(iter_metrics(folder, size, in_progress=size == MAX_TEXT_BYTES, name=name))


def read_last_line(folder: pathlib.Path, name: str) -> dict[str, Any]:
    """Return the last complete line of a file with one JSON object per line, without parsing the others."""
    path = folder / name
    lines = read_text(path).rpartition("\n")[0]
    try:
        value = json.loads(lines.rpartition("\n")[2])
    except (ValueError, RecursionError) as error:
        raise UnreadableFileError(path, f"is damaged: its last line is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnreadableFileError(path, "is damaged: its last line is not an evaluation")
    return value


def read_updates(folder: pathlib.Path, *, mapped: bool = False, any_status: bool = False) -> UpdateRows:
    """Return the log of completed jobs.

    Args:
        folder: The run folder.
        mapped: Map the file instead of loading it. Only for runs that no process can truncate meanwhile.
        any_status: Accept rows with a status that this version does not know.
    """
    path = folder / UPDATES
    try:
        with _open(path) as file:
            count, kind = _row_count(file)
            if mapped and count:
                rows: UpdateRows = np.memmap(file, kind, mode="r", offset=file.tell(), shape=(count,))
            else:
                rows = np.fromfile(file, kind, count)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if rows.dtype != UPDATE:
        first, rows = rows, np.full(len(rows), np.nan, UPDATE)
        for name in first.dtype.names or ():
            rows[name] = first[name]
    if len(rows) and not any_status and (worst := rows["status"].max()) >= len(STATUS):
        raise UnreadableFileError(path, f"is damaged: it contains the unknown status {worst}")
    return rows


def check_updates(folder: pathlib.Path) -> None:
    """Check the header and the size of the update log, without reading its rows."""
    path = folder / UPDATES
    try:
        with _open(path) as file:
            _row_count(file)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def read_sweep(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Return the runs of a sweep, each with its label, seed and folder relative to the sweep's."""
    runs = read_json(folder / SWEEP).get("runs")
    if not isinstance(runs, list) or not all(
        isinstance(run, dict) and isinstance(run.get("folder"), str) for run in runs
    ):
        raise UnreadableFileError(folder / SWEEP, "does not list the runs of a sweep")
    return runs


def is_run(folder: pathlib.Path) -> bool:
    """Return whether a folder contains files of a run."""
    with contextlib.suppress(OSError):
        return any((folder / name).is_file() for name in (CONFIG, STATUS_FILE, METRICS))
    return False


def in_use(folder: pathlib.Path) -> bool:
    """Return whether a process is currently writing to a run folder."""
    try:
        with os.fdopen(os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock file, or it is not a plain file
        return False
    return False


def name_of(folder: pathlib.Path) -> str:
    """Return the name of a run: its folder, for a run of a sweep relative to the sweep's folder."""
    place = folder.resolve()
    for sweep in place.parents[:2]:
        if (sweep / SWEEP).is_file():
            return place.relative_to(sweep).as_posix()
    return place.name


@contextlib.contextmanager
def _open(path: pathlib.Path) -> Iterator[BinaryIO]:
    """Open a plain file: no link, pipe or device."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is not a plain file")
        yield file


def _row_count(file: BinaryIO) -> tuple[int, np.dtype[Any]]:
    """Validate the header of an update log; return the number and type of its rows and leave the file at the first."""
    try:
        npy.read_magic(file)
        shape, _, kind = npy.read_array_header_1_0(file)
    except Exception as error:  # NumPy's parser of headers can raise almost anything
        raise ValueError(f"its header is damaged: {first_line(error)[:200]}") from error
    available = (os.fstat(file.fileno()).st_size - file.tell()) // max(1, kind.itemsize)
    if kind not in (UPDATE, FIRST_UPDATE) or len(shape) != 1:
        raise ValueError(f"it is not an update log of this version of offbeat: its rows are {kind}")
    if not 0 <= shape[0] <= available:
        raise ValueError(f"it is truncated: {available:,} of {shape[0]:,} rows")
    return int(shape[0]), kind


def _unreadable(path: pathlib.Path, error: Exception) -> UnreadableFileError:
    if isinstance(error, FileNotFoundError):
        return UnreadableFileError(path, "is missing", missing=True)
    reason = "it is a symbolic link" if path.is_symlink() else getattr(error, "strerror", None) or str(error)
    return UnreadableFileError(path, f"cannot be read: {reason}")
