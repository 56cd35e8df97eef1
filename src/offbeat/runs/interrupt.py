"""Graceful interruption by Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C (or SIGTERM) sets, so that a run can stop gracefully.

    A second signal has its usual effect.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handler(number: int, frame: object) -> None:
        event.set()
        for each, old in before.items():
            signal.signal(each, old)

    for number in before:
        signal.signal(number, handler)
    try:
        yield event
    finally:
        for number, old in before.items():
            signal.signal(number, old)
