"""A model as one vector x ∈ R^d.

The server's mathematics is done on flat tensors, as in the papers.  A `Layout` knows where each parameter of a module
lies in the vector and gives views into it, for one model (d,) or for a stack of models (n, d).
"""

from __future__ import annotations

import functools
import hashlib
import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a module's trainable parameters (or buffers), in their order in the vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        return cls(tuple(name for name, _ in named), tuple(p.shape for _, p in named))

    @classmethod
    def of_buffers(cls, module: nn.Module, names: Sequence[str]) -> Layout:
        """The same for buffers; whole numbers among them become floats in the vector."""
        buffers = dict(module.named_buffers())
        return cls(tuple(names), tuple(buffers[name].shape for name in names))

    @functools.cached_property
    def sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    @functools.cached_property
    def dim(self) -> int:
        return sum(self.sizes)

    @property
    def fingerprint(self) -> str:
        """Equal for two layouts exactly when their vectors mean the same."""
        text = ";".join(f"{n}:{tuple(s)}" for n, s in zip(self.names, self.shapes, strict=True))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of (…, d), one a parameter: (…, *shape)."""
        lead = flat.shape[:-1]
        parts = torch.split(flat, self.sizes, dim=-1)
        return {n: part.view((*lead, *s)) for n, s, part in zip(self.names, self.shapes, parts, strict=True)}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The inverse: one contiguous (…, d), a copy."""
        lead = tensors[self.names[0]].ndim - len(self.shapes[0])
        return torch.cat([tensors[name].flatten(start_dim=lead) for name in self.names], dim=-1)

    def read(self, module: nn.Module) -> Tensor:
        """These tensors of the module as a new vector."""
        tensors = _tensors(module)
        return self.flatten({name: tensors[name].detach() for name in self.names})

    def write(self, module: nn.Module, flat: Tensor) -> None:
        """Copy a vector into the module."""
        tensors = _tensors(module)
        with torch.no_grad():
            for name, view in self.unflatten(flat).items():
                tensors[name].copy_(view)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


BLOCK = 1 << 16
"""Entries that are worth an operation of their own and stay in a core's cache, with what is computed from them."""
HUGE = 2 << 20
"""Bytes of a huge page."""
LONG = 32 << 20
"""Bytes above which malloc keeps nothing for the next time."""


def blocks(v: Tensor) -> Sequence[Tensor]:
    """A long vector on a CPU in views so short that what is computed from one stays in the cache.

    A sum of several vectors, taken block by block, reads each once from main memory and writes nothing in between; a
    whole temporary vector would cost its writing, its reading and, above malloc's 32 MB, a page fault every 4 kB.
    Elsewhere the vector is one block.
    """
    if v.numel() <= BLOCK or v.device.type != "cpu":
        return (v,)
    return torch.split(v, BLOCK * torch.get_num_threads())


def empty_hugepages_like(like: Tensor) -> Tensor:
    """A vector as `like`, not filled.  A long one on a CPU lies in huge pages, where the system has them.

    malloc takes such a one from the system and returns it there each time; filling it then costs a page fault every
    4 kB, several times what the numbers cost.  Huge pages are asked for here, one after the other: threads that fill
    the vector together, and meet new pages at the same time, take up to six times as long (measured with 44 MB).
    """
    if like.nbytes < LONG or like.device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty_like(like)
    room = mmap.mmap(-1, like.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.madvise(mmap.MADV_HUGEPAGE)
    np.frombuffer(room, dtype=np.uint8)[::HUGE] = 0
    return torch.frombuffer(room, dtype=like.dtype).view(like.shape)


def add_scaled(x: Tensor, v: Tensor, step: float) -> Tensor:
    """x + step·v, a new vector."""
    return x.add(v, alpha=step) if x.nbytes < LONG else torch.add(x, v, alpha=step, out=empty_hugepages_like(x))


def warm_up_malloc() -> None:
    """Let blocks be allocated without page faults.

    glibc takes what is larger than anything it was ever given back straight from the system, and returns it there: a
    page fault every 4 kB, each time.  Giving back something larger once, never touched, is how it learns; it then keeps
    twice as much.  (Measured with a stack of MLPs: a quarter of the time of a local step.)
    """
    torch.empty((LONG >> 2) - BLOCK)  # more than LONG is not learnt
