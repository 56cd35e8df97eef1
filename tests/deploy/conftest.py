"""Fixtures of tests that run the server on a grid without a network."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.deploy.fake_grid import FakeGrid

from offbeat.flower import puller


@pytest.fixture(autouse=True)
def _short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pull replies often: without a network it costs nothing."""
    monkeypatch.setattr(puller, "MIN_INTERVAL", 0.02)


@pytest.fixture(autouse=True)
def _close_grids(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close all grids: a thread that is still training when the interpreter exits crashes it."""
    grids: list[FakeGrid] = []
    original = FakeGrid.__init__

    def init(self: FakeGrid, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)  # type: ignore[arg-type]
        grids.append(self)

    monkeypatch.setattr(FakeGrid, "__init__", init)
    yield
    for grid in grids:
        grid.close()


@pytest.fixture(autouse=True)
def _serialize_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one thread parse at a time.

    CPython 3.11 counts the depth of its parser for all threads together and may fail when two of them parse at the same
    time, as they do here to load NumPy arrays. A real server has one such thread.
    """
    lock, original = threading.Lock(), ast.parse

    def parse(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return original(*args, **kwargs)

    monkeypatch.setattr(ast, "parse", parse)
