from __future__ import annotations

import pathlib

import pytest
from tests.chaos.bugs import write


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    """A run of a fraction of a second, without bugs of its own."""
    return write(tmp_path)
