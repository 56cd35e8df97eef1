"""The notebooks of the documentation run, and show what their text promises."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest
from tests.support.notebooks import cells, execute
from tests.support.pages import ROOT

NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    if importlib.util.find_spec("pandas") is None:
        pytest.skip("needs pandas")
    shown = execute(path, tmp_path)
    code = ["".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "code"]
    for source, kinds in zip(code, shown, strict=True):
        last = source.splitlines()[-1]
        if last in ("result", "sweep") or last.startswith(
            ("result.metrics.tail", "sweep.compare", "comparison.", "sweep.metrics")
        ):
            assert "text/html" in kinds, source
        if last.startswith(("result.plot", "sweep.plot")):
            assert "image/png" in kinds, source
    assert (tmp_path / "runs/sweep/report.html").is_file()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: pathlib.Path) -> None:
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells(path) if "outputs" in cell)
    assert len(NOTEBOOKS) >= 1
