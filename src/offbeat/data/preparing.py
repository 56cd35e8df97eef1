"""Progress reports of downloading and reading data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Preparing:
    """The progress of one step of the preparation."""

    what: str
    done: int = 0
    total: int | None = None  # None if unknown
    in_bytes: bool = False


Watch = Callable[[Preparing | None], None]

_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)
_CURRENT: ContextVar[Preparing | None] = ContextVar("current", default=None)


@contextlib.contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Call `watch` with the progress of every step inside the context, and with None when all steps are complete."""
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


@contextlib.contextmanager
def preparing(what: str, total: int | None = None, in_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """Announce a step of the preparation to the watcher, if there is one.

    Args:
        what: Name of the file or dataset.
        total: Total number of items or bytes, or None if unknown.
        in_bytes: Whether the amounts are bytes.

    Yields:
        A function that reports the amount completed so far.
    """
    watch = _WATCH.get()
    if watch is None:
        yield lambda _: None
        return
    current = Preparing(what, 0, total, in_bytes)
    token = _CURRENT.set(current)
    watch(current)
    try:
        yield lambda done: watch(replace(current, done=done))
    finally:
        _CURRENT.reset(token)
        watch(_CURRENT.get())
