"""Graceful interruption by Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

_WORDS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Interruption(threading.Event):
    """An event that is set by Ctrl-C or SIGTERM.

    Attributes:
        reason: What has set the event.
        at_once: Whether a signal raises KeyboardInterrupt instead of waiting until a run has ended in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reason: str | None = None
        self.at_once = False

    def interrupt(self, reason: str) -> None:
        """Set the event."""
        self.reason = self.reason or reason
        if self.at_once:
            raise KeyboardInterrupt(reason)
        self.set()


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Yield an event that the first Ctrl-C (or SIGTERM) sets, so that a run can stop gracefully.

    A second signal has its usual effect.
    """
    event = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {number: signal.getsignal(number) for number in _WORDS}

    def handler(number: int, frame: object) -> None:
        for each, old in before.items():
            signal.signal(each, old)
        event.interrupt(_WORDS[signal.Signals(number)])

    for number in before:
        signal.signal(number, handler)
    try:
        yield event
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextlib.contextmanager
def preparing(event: threading.Event) -> Iterator[None]:
    """Let a signal take effect at once while nothing has begun yet, such as while data is loaded."""
    if event.is_set():
        raise KeyboardInterrupt(reason_of(event))
    if isinstance(event, Interruption):
        event.at_once = True
    try:
        yield
    finally:
        if isinstance(event, Interruption):
            event.at_once = False


def reason_of(event: threading.Event) -> str | None:
    """Return what has set an event, if it is known."""
    return event.reason if isinstance(event, Interruption) else None
