from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.deploy.double import Double

from offbeat.deploy import pull


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
