"""A model as one flat vector x ∈ R^d.

The server computes on flat tensors, as the papers do. A `Layout` maps each parameter of a module to its position in the
vector and provides views into it, for one model (d,) or for a stack of models (n, d).
"""

from __future__ import annotations

import copy
import functools
import hashlib
import math
import mmap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a module's trainable parameters or buffers, in the order of the vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Return the layout of a module's trainable parameters."""
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        return cls(tuple(name for name, _ in named), tuple(p.shape for _, p in named))

    @classmethod
    def of_buffers(cls, module: nn.Module, names: Sequence[str]) -> Layout:
        """Return the layout of the given buffers; integer buffers become floats in the vector."""
        buffers = dict(module.named_buffers())
        return cls(tuple(names), tuple(buffers[name].shape for name in names))

    def select(self, names: Sequence[str]) -> Layout:
        """Return the layout of some of the tensors, in the given order."""
        shapes = dict(zip(self.names, self.shapes, strict=True))
        return Layout(tuple(names), tuple(shapes[name] for name in names))

    @functools.cached_property
    def sizes(self) -> list[int]:
        """Number of entries of each tensor."""
        return [math.prod(shape) for shape in self.shapes]

    @functools.cached_property
    def dim(self) -> int:
        """Length d of the vector."""
        return sum(self.sizes)

    @property
    def fingerprint(self) -> str:
        """A hash that is equal for two layouts exactly if their names and shapes are."""
        text = ";".join(f"{n}:{tuple(s)}" for n, s in zip(self.names, self.shapes, strict=True))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views (…, *shape) of a vector (…, d), one per parameter."""
        lead = flat.shape[:-1]
        if not self.names:
            return {}
        parts = torch.split(flat, self.sizes, dim=-1)
        return {n: part.view((*lead, *s)) for n, s, part in zip(self.names, self.shapes, parts, strict=True)}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return tensors as one contiguous vector (…, d); this copies them."""
        lead = tensors[self.names[0]].ndim - len(self.shapes[0])
        return torch.cat([tensors[name].flatten(start_dim=lead) for name in self.names], dim=-1)

    def read(self, module: nn.Module) -> Tensor:
        """Return the module's tensors as a new vector."""
        tensors = _tensors(module)
        if not self.names:
            return next(iter(tensors.values())).new_zeros(0)
        return self.flatten({name: tensors[name].detach() for name in self.names})

    def write(self, module: nn.Module, flat: Tensor) -> None:
        """Copy a vector into the module."""
        tensors = _tensors(module)
        with torch.no_grad():
            for name, view in self.unflatten(flat).items():
                tensors[name].copy_(view)


def copied(module: nn.Module) -> nn.Module:
    """Return a deep copy of a module that shares its frozen parameters, which nothing changes."""
    return copy.deepcopy(module, {id(p): p for p in module.parameters() if not p.requires_grad})


def fixed_fingerprint(module: nn.Module, changing: Collection[str]) -> str:
    """Return a hash of a module's tensors except for those with the given names, and those that are tied to them."""
    tensors = module.state_dict(keep_vars=True)
    moving = {id(tensors[name]) for name in changing if name in tensors}
    found = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        if id(value) not in moving:
            data = value.detach().cpu().reshape(-1).view(torch.uint8)  # NumPy has no bfloat16
            found.update(name.encode())
            found.update(data.numpy().data)
    return found.hexdigest()


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


BLOCK = 1 << 16
"""Entries of a block: enough to be worth an operation, few enough to stay in a core's cache with the results."""
HUGE = 2 << 20
"""Bytes of a huge page."""
LONG = 32 << 20
"""Bytes above which malloc returns memory to the system instead of reusing it."""


def blocks(v: Tensor) -> Sequence[Tensor]:
    """Return views of a long vector on a CPU, short enough that intermediate results stay in the cache.

    A sum of several vectors, computed block by block, reads each vector once from main memory and writes nothing in
    between. A whole temporary vector would have to be written, read and, above malloc's 32 MB, paged in every 4 kB. On
    other devices the vector is one block.
    """
    if v.numel() <= BLOCK or v.device.type != "cpu":
        return (v,)
    return torch.split(v, BLOCK * torch.get_num_threads())


def empty_hugepages_like(like: Tensor) -> Tensor:
    """Return an uninitialized vector like the given one; a long one on a CPU uses huge pages where available.

    malloc requests a long vector from the system and returns it there each time, so filling it costs a page fault every
    4 kB, several times the cost of the arithmetic. The huge pages are touched here, one after another: threads that
    fill the vector together and hit new pages at the same time take up to six times as long (measured with 44 MB).
    """
    if like.nbytes < LONG or like.device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty_like(like)
    pages = mmap.mmap(-1, like.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    np.frombuffer(pages, dtype=np.uint8)[::HUGE] = 0
    return torch.frombuffer(pages, dtype=like.dtype).view(like.shape)


def add_scaled(x: Tensor, v: Tensor, step: float) -> Tensor:
    """Return x + step·v as a new vector."""
    return x.add(v, alpha=step) if x.nbytes < LONG else torch.add(x, v, alpha=step, out=empty_hugepages_like(x))


def warm_up_malloc() -> None:
    """Let malloc reuse memory for blocks, so that allocating them causes no page faults.

    glibc requests anything larger than what was ever freed directly from the system and returns it there, at a page
    fault every 4 kB. Freeing one larger, untouched allocation raises that threshold. (Measured with a stack of MLPs: a
    quarter of the time of a local step.)
    """
    torch.empty((LONG >> 2) - BLOCK)  # glibc does not raise the threshold beyond LONG
