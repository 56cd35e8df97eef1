"""How far the preparation of data is, for whoever wants to show it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Preparing:
    """What is being done at the moment."""

    what: str
    done: int = 0
    total: int | None = None  # None when nobody knows
    in_bytes: bool = False


Watch = Callable[[Preparing | None], None]

_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)
_NOW: ContextVar[Preparing | None] = ContextVar("now", default=None)


@contextlib.contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Within this, `watch` is told what is being prepared, and None when it is there."""
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


@contextlib.contextmanager
def preparing(what: str, total: int | None = None, in_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """Something is being prepared; the function that this gives is told how much of it is done."""
    watch = _WATCH.get()
    if watch is None:
        yield lambda _: None
        return
    now = Preparing(what, 0, total, in_bytes)
    token = _NOW.set(now)
    watch(now)
    try:
        yield lambda done: watch(replace(now, done=done))
    finally:
        _NOW.reset(token)
        watch(_NOW.get())
