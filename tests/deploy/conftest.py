from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.deploy.double import Double

from offbeat.flower import puller as pull


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network there is nothing to spare."""
    monkeypatch.setattr(pull, "SOONEST", 0.02)


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Grids are closed: a thread that still trains when the interpreter ends takes it down with it."""
    made: list[Double] = []
    plain = Double.__init__

    def noted(self: Double, *args: object, **more: object) -> None:
        plain(self, *args, **more)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(Double, "__init__", noted)
    yield
    for double in made:
        double.close()


@pytest.fixture(autouse=True)
def _one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11 has one count of how deep it parses for all threads, and may fail when two parse at once, as those
    do here that load NumPy arrays.  A real server has one such thread."""
    lock, plain = threading.Lock(), ast.parse

    def parse(*args: Any, **more: Any) -> Any:
        with lock:
            return plain(*args, **more)

    monkeypatch.setattr(ast, "parse", parse)
