"""Measurements of offbeat itself; those of a deployment are in its own room."""

from __future__ import annotations

from collections.abc import Callable

Tell = Callable[[str, int, int], None]
"""Is told what is measured next, how many were before it, and how many there are."""


def silent(what: str, number: int, count: int) -> None:
    """Tells nobody."""
