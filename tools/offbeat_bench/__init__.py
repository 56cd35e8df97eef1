"""Benchmarks of offbeat itself: the server loop, server rules, local training and deployments."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called before each measurement with its name, the number of measurements before it, and their total."""


def no_progress(what: str, number: int, count: int) -> None:
    """Report nothing."""
