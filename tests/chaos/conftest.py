from __future__ import annotations

import pathlib

import pytest
from tests.support.planted_bugs import write


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return the TOML of a run without planted bugs that takes a fraction of a second."""
    return write(tmp_path)
