"""Rows on disk, memory-mapped, with a budget for what of them may stay in RAM."""

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
    """Every h_i exactly as it was sent, 4·d bytes each, in a file.

    A row is never overwritten while a saved state may still refer to it: the new value goes into a free slot, and the
    old slot comes free two saved states later.  So a checkpoint holds the slots' numbers, not the rows; the file holds
    the rows of now and of the last three states at most, and grows by half at a time.
    """

    directory: str = ""
    """Where the file lies; a run puts it into its own folder, elsewhere it is a temporary one."""
    budget_mb: Positive = 256.0
    """Megabytes of the file that may be mapped into RAM before they are written back and let go."""

    state_names: ClassVar[tuple[str, ...]] = ("_slots", "_free", "_retired")

    def use_folder(self, folder: pathlib.Path) -> None:
        """Put the file into a folder, unless the user gave a directory."""
        if not self.directory:
            self.directory = str(folder)

    def start(self, like: Tensor, clients: int) -> None:
        super().start(like, clients)
        self._path: pathlib.Path | None = None
        self._dtype = like.new_empty(0, device="cpu").numpy().dtype
        self._row = like.numel() * self._dtype.itemsize
        self._slots = 0
        self._free: list[int] = []
        self._retired: list[list[int]] = [[], [], []]  # by how many states were saved since; the first is the newest
        self._fresh: set[int] = set()  # slots that no saved state refers to
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
        """A slot of the file as a vector."""
        return torch.from_numpy(np.frombuffer(self._mapped(), self._dtype, self.like.numel(), slot * self._row))

    def forget(self, client: int) -> None:
        self.total.sub_(self[client])
        self._release(client)

    @property
    def nbytes(self) -> int:
        """RAM: the part of the file that may be mapped, and the slots' numbers."""
        return min(int(self.budget_mb * 1e6), len(self.rows) * self._row) + 8 * len(self.rows)

    @property
    def disk_bytes(self) -> int:
        return self._slots * self._row

    def state_dict(self) -> dict[str, Any]:
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
        """Grow the file, by half of its rows at a time."""
        grown = max(16, self._slots * 3 // 2)
        self._map = None  # it goes when nobody looks into it any more
        with self._file().open("ab") as file:
            _reserve(file.fileno(), grown * self._row)
        self._free += range(grown - 1, self._slots, -1)
        fresh, self._slots = self._slots, grown
        return fresh

    def _file(self) -> pathlib.Path:
        """Nothing is made before the first row is stored."""
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
                raise ConfigError(f"{folder} is in use by another memory", key="cache.directory") from None
            weakref.finalize(self, self._lock.close)
        return self._path

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            with self._file().open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), 0)
        return self._map

    def _account(self, nbytes: int) -> None:
        """Count what is about to be touched; over the budget, write back and let go."""
        self._touched += nbytes
        if self._map is not None and self._touched > self.budget_mb * 1e6:
            self._map.flush()
            self._map.madvise(mmap.MADV_DONTNEED)
            self._touched = nbytes


def _reserve(file: int, size: int) -> None:
    """Make a file so long.  Where the system can, its blocks are there from now on: a disk that is full is an error
    here, not a signal that kills the process when it writes to the map."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)
