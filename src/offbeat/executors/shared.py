"""Tensors in memory that a process and its children see together."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

from offbeat.vectors import empty_hugepages_like


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies."""

    cell: int
    dtype: torch.dtype
    shape: torch.Size


TensorRef = Place | Tensor  # what a message says of a tensor; one that finds no cell travels itself


class SharedSlab:
    """Equal pieces of one anonymous mapping, made before the children are.

    It has no name, so nothing is left behind however the processes end, and the limit on /dev/shm (64 MB in many
    containers) does not apply.  Pages that are never written take no memory.
    """

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = mmap.PAGESIZE * -(-max(1, size) // mmap.PAGESIZE)
        memory = mmap.mmap(-1, count * self.size)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8).view(count, self.size)

    def put(self, tensor: Tensor, cell: int | None) -> TensorRef:
        """Copy a tensor into a cell."""
        if cell is None or tensor.nbytes > self.size:
            return tensor.detach()
        place = Place(cell, tensor.dtype, tensor.shape)
        self.view(place).copy_(tensor.detach())
        return place

    def view(self, parcel: TensorRef) -> Tensor:
        """The tensor where it lies: good for as long as nobody else uses the cell."""
        if isinstance(parcel, Tensor):
            return parcel
        size = math.prod(parcel.shape) * parcel.dtype.itemsize
        return self._bytes[parcel.cell, :size].view(parcel.dtype).view(parcel.shape)

    def copy(self, parcel: TensorRef) -> Tensor:
        """The tensor in memory of its own."""
        if isinstance(parcel, Tensor):
            return parcel
        lying = self.view(parcel)
        return empty_hugepages_like(lying).copy_(lying)


@dataclass(slots=True)
class _Loan:
    tensor: Tensor  # held, so that no other gets its identity
    readers: int = 0


class SlabAllocator:
    """The parent's book of the cells: which are free, and which hold a tensor that several jobs read.

    A tensor that nobody reads any more stays until its cell is needed: the next job may start from the same version.
    """

    def __init__(self, cells: SharedSlab) -> None:
        self.cells = cells
        self._free = list(range(cells.count))
        self._loans: dict[int, _Loan] = {}  # by cell
        self._places: dict[int, Place] = {}  # by the tensor's identity

    def take(self) -> int | None:
        """A cell to write into; None when all are in use."""
        if not self._free:
            self._drop(next((cell for cell, loan in self._loans.items() if not loan.readers), None))
        return self._free.pop() if self._free else None

    def give(self, cell: int | None) -> None:
        if cell is not None:
            self._free.append(cell)

    def lend(self, tensor: Tensor) -> TensorRef:
        """The tensor for one more reader, copied when it is the first."""
        if id(tensor) not in self._places:
            cell = self.take()
            parcel = self.cells.put(tensor, cell)
            if isinstance(parcel, Tensor):
                self.give(cell)
                return parcel
            self._places[id(tensor)], self._loans[parcel.cell] = parcel, _Loan(tensor)
        place = self._places[id(tensor)]
        self._loans[place.cell].readers += 1
        return place

    def back(self, parcel: TensorRef) -> None:
        """One reader less."""
        if isinstance(parcel, Place):
            self._loans[parcel.cell].readers -= 1

    def clear(self) -> None:
        """Forget what nobody reads: a version that the run has left behind must not stay in memory."""
        for cell in [cell for cell, loan in self._loans.items() if not loan.readers]:
            self._drop(cell)

    def _drop(self, cell: int | None) -> None:
        if cell is not None:
            del self._places[id(self._loans.pop(cell).tensor)]
            self._free.append(cell)
