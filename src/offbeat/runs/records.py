"""The files of a run: its folder, and the records from which it resumes."""

from __future__ import annotations

import contextlib
import hashlib
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.errors import OffbeatError, RunFolderError
from offbeat.files import write_atomic, write_json
from offbeat.runs.folder import (
    CONFIG,
    METRICS,
    MODEL,
    PERSONAL,
    SUMMARY,
    UPDATES,
    Origin,
    RunFolder,
    read_client_metrics,
    read_label_metrics,
    read_metrics,
    read_status,
    write_status,
)
from offbeat.server import checkpoint
from offbeat.server.session import CACHE_FOLDER, CHECKPOINT_FOLDER

Line = dict[str, Any]


class Records:
    """The files of one run. Without `open` or `reopen`, nothing is written.

    Args:
        path: The run folder, if there is one.
    """

    def __init__(self, path: pathlib.Path | None) -> None:
        self._path = path
        self._restored: dict[str, Any] = {}  # the records of the checkpoint that the run resumes from
        self.folder: RunFolder | None = None

    @property
    def path(self) -> pathlib.Path | None:
        """The run folder, if the run writes one."""
        return self.folder.path if self.folder else None

    def open(self, path: pathlib.Path, config: str, origin: Origin, setting: Mapping[str, Any] | None) -> None:
        """Create the folder of a new run; see `RunFolder.create`."""
        self.folder = RunFolder.create(path, config, origin, setting)

    @contextlib.contextmanager
    def reopening(self, path: pathlib.Path) -> Iterator[None]:
        """Release the folder and explain if a run cannot be resumed because of its files."""
        self._path = path
        try:
            yield
        except OSError as error:
            if self.folder:
                with contextlib.suppress(OSError):
                    self.folder.close()
            raise RunFolderError(f"cannot resume {path}: {error.strerror}") from error

    def restore(self, path: pathlib.Path) -> tuple[list[Line], list[Line], list[Line]]:
        """Open the folder after the checkpoint's records; return the evaluations: in all, per client and per label."""
        metrics_bytes, update_rows = self._restored.get("metrics_bytes", 0), self._restored.get("update_rows", 0)
        client_bytes, label_bytes = (self._restored.get(f"{each}_metrics_bytes", 0) for each in ("client", "label"))
        lines = read_metrics(path, metrics_bytes) if self._restored else []
        per_client = read_client_metrics(path, client_bytes) if client_bytes else []
        per_label = read_label_metrics(path, label_bytes) if label_bytes else []
        self.folder = RunFolder(
            path, metrics_bytes, update_rows, client_metrics_bytes=client_bytes, label_metrics_bytes=label_bytes
        )
        self.folder.status("running")
        return lines, per_client, per_label

    def state_dict(self) -> dict[str, Any]:
        """Return the lengths of the logs."""
        assert self.folder, "only runs with a folder write checkpoints"
        return {
            "metrics_bytes": self.folder.metrics_bytes,
            **self.folder.grouped_bytes,
            "update_rows": self.folder.updates.rows,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from saved records, which `restore` reads."""
        assert self._path is not None
        if not (self._path / METRICS).is_file() or not (self._path / UPDATES).is_file():
            raise RunFolderError(f"{self._path} cannot be resumed: {METRICS} or {UPDATES} is missing")
        self._restored = state

    def identity(self, fingerprint: str) -> str:
        """Return a hash of config and model, with which a checkpoint must agree."""
        path = self.path or self._path
        assert path is not None
        return hashlib.sha256((path / CONFIG).read_bytes() + fingerprint.encode()).hexdigest()

    def finish(
        self, model: Callable[[], nn.Module], personal: Mapping[str, Tensor], summary: Mapping[str, Any]
    ) -> None:
        """Write the model, what stays on the clients, and the summary of a finished run."""
        if self.folder:
            from safetensors.torch import save

            write_atomic(self.folder.path / MODEL, save(_saved(model().state_dict())))
            if personal:
                write_atomic(self.folder.path / PERSONAL, save(_saved(personal)))
            self.folder.close()
            write_json(self.folder.path / SUMMARY, summary)
            settle(self.folder.path)

    def interrupt(self, version: int, reason: str | None) -> None:
        """Close the folder of an interrupted run."""
        if self.folder:
            self.folder.close()
            self.folder.status("interrupted", version=version, **({"reason": reason} if reason else {}))

    def fail(self, error: Exception, version: int, *, new: bool) -> None:
        """Close the folder of a failed run.

        Args:
            error: The error.
            version: The last version.
            new: Whether the run has produced nothing yet; its folder is then removed if it cannot even be marked.
        """
        if not self.folder:
            return
        expected = isinstance(error, OffbeatError | OSError)
        reason = str(error) if expected else f"{type(error).__name__}: {error}"
        try:
            self.folder.fail(reason, version)
        except OSError:  # the disk itself may be the cause
            if self.folder.created and new:
                self.folder.discard()


def _saved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors in their own memory: tied weights share theirs, which the format does not allow."""
    return {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}


def settle(path: pathlib.Path) -> None:
    """Complete a run that has a summary but may have been killed right after writing it."""
    if read_status(path).get("state") == "finished":
        return
    shutil.rmtree(path / CACHE_FOLDER, ignore_errors=True)
    checkpoint.clear(path / CHECKPOINT_FOLDER)
    write_status(path, "finished", Origin.of(path))
