from __future__ import annotations

import pytest

from offbeat.deploy import pull


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network there is nothing to spare."""
    monkeypatch.setattr(pull, "SOONEST", 0.005)
