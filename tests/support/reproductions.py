"""A small reproduction, and its folder."""

from __future__ import annotations

import pathlib

import pytest

from offbeat.reproductions import files

TINY = """
rounds = 4
seeds = [0, 1]
[scheduler]
concurrency = 4
buffer = 2
[client]
steps = 1
batch_size = 10
[data]
name = "digits"
clients = 8
[evaluation]
every = 1
[[axes.method]]
label = "FedBuff"
algorithm.name = "fedbuff"
[[axes.method]]
label = "CA²FL"
rounds = 3
algorithm.name = "ca2fl"
[[axes.data]]
label = "x"
[[axes.data]]
label = "y"
data.clients = 9
"""
PAPER = """
[tiny]
title = "Tiny, Table 1"
figure = "accuracy"
columns = ["x", "y"]
curves = [""]
[tiny.rows]
"FedBuff" = [0.25, nan]
"CA²FL" = [0.5, 0.75]
"""
CLAIMS = """
[[tiny]]
claim = "CA²FL is faster than that of another table"
reproduction = "other"
figure = "target_rounds@0.06"
compare = "ratio"
cells = [["tiny::CA²FL x", "CA²FL x"]]
below = 1

[[tiny]]
claim = "CA²FL is fast"
reproduction = "tiny"
figure = "target_rounds@0.05"
compare = "level"
cells = ["CA²FL x"]
most = 3
printed = [2]
"""


@pytest.fixture
def tiny(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Replace the reproductions by one of four cells; return an empty working folder."""
    folder = tmp_path / "reproductions"
    folder.mkdir()
    for name, text in (("tiny", TINY), ("paper", PAPER), ("claims", CLAIMS), ("contents", "")):
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(files, "FOLDER", folder)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work
