"""Tensors in memory that a process shares with its children."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

from offbeat.vectors import empty_hugepages_like


@dataclass(frozen=True, slots=True)
class SlotRef:
    """A tensor that lies in a slot of a `SharedSlab`."""

    slot: int
    dtype: torch.dtype
    shape: torch.Size


TensorRef = SlotRef | Tensor  # a tensor as a message refers to it; without a slot it is part of the message


class SharedSlab:
    """Slots of equal size in one anonymous mapping, created before the children.

    The mapping has no name, so nothing is left behind however the processes end, and the limit of /dev/shm (64 MB in
    many containers) does not apply. Pages that are never written take no memory.

    Args:
        count: Number of slots.
        size: Bytes per slot, rounded up to whole pages.
    """

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = mmap.PAGESIZE * -(-max(1, size) // mmap.PAGESIZE)
        memory = mmap.mmap(-1, count * self.size)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8).view(count, self.size)

    def put(self, tensor: Tensor, slot: int | None) -> TensorRef:
        """Copy a tensor into a slot and return a reference; without a slot that fits, return the tensor itself."""
        if slot is None or tensor.nbytes > self.size:
            return tensor.detach()
        ref = SlotRef(slot, tensor.dtype, tensor.shape)
        self.view(ref).copy_(tensor.detach())
        return ref

    def view(self, ref: TensorRef) -> Tensor:
        """Return the tensor in place, valid until its slot is used again."""
        if isinstance(ref, Tensor):
            return ref
        size = math.prod(ref.shape) * ref.dtype.itemsize
        return self._bytes[ref.slot, :size].view(ref.dtype).view(ref.shape)

    def copy(self, ref: TensorRef) -> Tensor:
        """Return the tensor in private memory."""
        if isinstance(ref, Tensor):
            return ref
        shared = self.view(ref)
        return empty_hugepages_like(shared).copy_(shared)


@dataclass(slots=True)
class _SharedTensor:
    tensor: Tensor  # kept alive, so that no other tensor gets its identity
    readers: int = 0


class SlabAllocator:
    """Tracks which slots are free and which hold a tensor that several jobs read; used by the parent only.

    A tensor without readers stays until its slot is needed, since the next job may start from the same version.
    """

    def __init__(self, slab: SharedSlab) -> None:
        self.slab = slab
        self._free = list(range(slab.count))
        self._shared: dict[int, _SharedTensor] = {}  # by slot
        self._refs: dict[int, SlotRef] = {}  # by the tensor's identity

    def allocate(self) -> int | None:
        """Return a slot to write to; None when all are in use."""
        if not self._free:
            self._evict(next((slot for slot, shared in self._shared.items() if not shared.readers), None))
        return self._free.pop() if self._free else None

    def free(self, slot: int | None) -> None:
        """Return a slot that `allocate` gave out."""
        if slot is not None:
            self._free.append(slot)

    def share(self, tensor: Tensor) -> TensorRef:
        """Add a reader of the tensor; the first one copies it into a slot."""
        if id(tensor) not in self._refs:
            slot = self.allocate()
            ref = self.slab.put(tensor, slot)
            if isinstance(ref, Tensor):
                self.free(slot)
                return ref
            self._refs[id(tensor)], self._shared[ref.slot] = ref, _SharedTensor(tensor)
        shared = self._refs[id(tensor)]
        self._shared[shared.slot].readers += 1
        return shared

    def unshare(self, ref: TensorRef) -> None:
        """Remove a reader."""
        if isinstance(ref, SlotRef):
            self._shared[ref.slot].readers -= 1

    def evict_unread(self) -> None:
        """Drop all tensors without readers, so that models of past versions do not stay in memory."""
        for slot in [slot for slot, shared in self._shared.items() if not shared.readers]:
            self._evict(slot)

    def _evict(self, slot: int | None) -> None:
        if slot is not None:
            del self._refs[id(self._shared.pop(slot).tensor)]
            self._free.append(slot)
