"""The examples run, print what their page shows, and end as they say."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest
from tests.pages import ROOT, as_shown, blocks, commands

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CONSOLES = [block for block in blocks(ROOT / "docs/examples.md") if block.language == "console"]
SHOWN = {command: (block, expected) for block in CONSOLES for command, expected in commands(block)}
ENDS = {  # what the figures must say for the text to be right
    "stragglers": r"FedAvg, waits for 20 .* never .*CA²FL, at every 10th +9\d\.\d% +\d+ \(2/2\)",
    "own_rule": r"FedBuff +[1-7]\d\.\d%.*MedianBuff +9\d\.\d%",
    "unavailable": r"FedAvg +0 +0 .*MIFA +9\d +9\d .*MIFA, 4 bit +9\d +9\d ",
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_ends_as_it_says(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    block, expected = SHOWN[f"python examples/{path.name}"]
    assert as_shown(block, expected, done.stdout), done.stdout
    assert re.search(ENDS[path.stem], done.stdout, flags=re.S), done.stdout
    assert not list(tmp_path.iterdir()), "nothing is left behind"
