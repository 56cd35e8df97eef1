"""A client app that was written without offbeat trains under AsyncStrategy, in real processes."""

from __future__ import annotations

import pathlib

from offbeat.deploy.federation import federation
from offbeat.deploy.processes import Programs

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_a_stock_client_app_trains_asynchronously(tmp_path: pathlib.Path) -> None:
    with Programs() as programs:
        found = federation(programs, tmp_path, 2, "tests.deploy.stock_app", {"out": ""}, [ROOT]).run()
    before, after = found["server"]
    assert after > 0.5 > before
    assert found["trained"] == 2
    assert found["clients"]
