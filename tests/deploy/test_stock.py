"""A client app that was written without offbeat trains under AsyncStrategy, in real processes."""

from __future__ import annotations

import pathlib

from offbeat.deploy.federation import Federation

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_a_stock_client_app_trains_asynchronously() -> None:
    with Federation(2, "tests.deploy.stock_app", {"out": ""}, [ROOT]) as run:
        found = run()
    before, after = found["server"]
    assert after > 0.5 > before
    assert found["trained"] == 4
    assert found["clients"]
