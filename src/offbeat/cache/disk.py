"""Cache entries in a memory-mapped file, with a limit on their use of RAM."""

from __future__ import annotations

import fcntl
import mmap
import os
import pathlib
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from offbeat.cache.base import Change, UpdateCache, differences
from offbeat.errors import ConfigError
from offbeat.options import Positive


@dataclass(kw_only=True)
class Disk(UpdateCache):
    """Exact entries in a file: 4·d bytes of disk for each client that has reported.

    An entry is never overwritten while a checkpoint may still refer to it: the new value goes into a free slot, and the
    old slot becomes free two checkpoints later. A checkpoint therefore contains slot numbers instead of entries. The
    file contains the current entries and at most those of the last three checkpoints, and grows by half at a time.
    """

    directory: str = ""
    """Folder of the file. The default is the run folder, or a temporary folder outside of a run."""
    budget_mb: Positive = 256.0
    """Megabytes of the file that may be in RAM before they are written back and released."""

    state_names: ClassVar[tuple[str, ...]] = ("_slots", "_free", "_retired")

    def use_folder(self, folder: pathlib.Path) -> None:
        """Store the file in a folder, unless the user chose a directory."""
        if not self.directory:
            self.directory = str(folder)

    def start(self, like: Tensor, clients: int) -> None:
        """Discard all entries. The file is created with the first entry."""
        super().start(like, clients)
        self._path: pathlib.Path | None = None
        self._dtype = like.new_empty(0, device="cpu").numpy().dtype
        self._row = like.numel() * self._dtype.itemsize
        self._slots = 0
        self._free: list[int] = []
        self._retired: list[list[int]] = [[], [], []]  # by the number of checkpoints since then
        self._fresh: set[int] = set()  # slots that no checkpoint refers to
        self._touched = 0
        self._map: mmap.mmap | None = None

    def __getitem__(self, client: int) -> Tensor:
        slot = self.rows.get(client)
        row = torch.empty_like(self.like)
        if slot is None:
            return row.zero_()
        self._account(self._row)
        return row.copy_(self._view(slot))

    def _exchange(self, client: int, value: Tensor, key: int | None) -> Iterator[Change]:
        slot = self.rows.get(client)
        row = None if slot is None else self._view(slot).to(value.device)
        for change in differences(value, row):
            self._account(change[0].nbytes)
            yield change
        if key is None:
            return
        self._release(client)
        slot = self._free.pop() if self._free else self._new_slot()
        self._account(self._row)
        self._view(slot).copy_(value)
        self.rows[client] = slot
        self._fresh.add(slot)

    def _view(self, slot: int) -> Tensor:
        """Return a slot of the file as a vector."""
        return torch.from_numpy(np.frombuffer(self._mapped(), self._dtype, self.like.numel(), slot * self._row))

    def forget(self, client: int) -> None:
        """Remove the entry of a client and release its slot."""
        self.total.sub_(self[client])
        self._release(client)

    @property
    def nbytes(self) -> int:
        """Bytes of RAM: the part of the file that may be mapped, and the slot numbers."""
        return min(int(self.budget_mb * 1e6), len(self.rows) * self._row) + 8 * len(self.rows)

    @property
    def disk_bytes(self) -> int:
        """Size of the file in bytes."""
        return self._slots * self._row

    def state_dict(self) -> dict[str, Any]:
        """Write the file back and return the slot numbers; slots that no recent checkpoint needs become free."""
        if self._map is not None:
            self._map.flush()
        self._retired.insert(0, [])
        self._free += self._retired.pop()
        self._fresh.clear()
        return super().state_dict()

    def _release(self, client: int) -> None:
        slot = self.rows.pop(client, None)
        if slot in self._fresh:
            self._fresh.discard(slot)
            self._free.append(slot)
        elif slot is not None:
            self._retired[0].append(slot)

    def _new_slot(self) -> int:
        """Grow the file by half and return its first new slot."""
        grown = max(16, self._slots * 3 // 2)
        self._map = None  # the old map is released with its last view
        with self._file().open("ab") as file:
            _reserve(file.fileno(), grown * self._row)
        self._free += range(grown - 1, self._slots, -1)
        fresh, self._slots = self._slots, grown
        return fresh

    def _file(self) -> pathlib.Path:
        """Return the path of the file. The first call creates its folder and locks it."""
        if self._path is None:
            folder = pathlib.Path(self.directory or tempfile.mkdtemp(prefix="offbeat-"))
            folder.mkdir(parents=True, exist_ok=True)
            if not self.directory:
                weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._path = folder / "cache.bin"
            self._lock = (folder / "cache.lock").open("w")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._lock.close()
                raise ConfigError(
                    f"{folder} is in use by another cache: choose another directory", key="cache.directory"
                ) from None
            weakref.finalize(self, self._lock.close)
        return self._path

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            with self._file().open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), 0)
        return self._map

    def _account(self, nbytes: int) -> None:
        """Count bytes that are about to be accessed; above the budget, write back and release the mapped pages."""
        self._touched += nbytes
        if self._map is not None and self._touched > self.budget_mb * 1e6:
            self._map.flush()
            self._map.madvise(mmap.MADV_DONTNEED)
            self._touched = nbytes


def _reserve(file: int, size: int) -> None:
    """Extend a file to a size and allocate its blocks where the system supports it.

    A full disk then raises an error here, instead of a signal that kills the process when it writes to the map.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)
