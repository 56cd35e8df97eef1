"""The files of the reproductions.

NAME.toml           an experiment of a paper, for `offbeat reproduce NAME`
paper.toml          the figures that the papers print, and our notes
claims.toml         what the papers claim, and how each claim is judged
contents.toml       all tables and figures of the papers, and where each is reproduced
results/NAME.json   the runs that were made (see `results`)
"""

from __future__ import annotations

import functools
import pathlib
from typing import Any

from offbeat.errors import ConfigError, nearest
from offbeat.runs import config
from offbeat.runs.config import Table
from offbeat.runs.sweep import Cell, Sweep

FOLDER = pathlib.Path(__file__).parent


def papers() -> dict[str, dict[str, Any]]:
    """Return the content of `paper.toml`: the papers' figures by the name of the reproduction."""
    return config.read(FOLDER / "paper.toml")


def paper(name: str) -> dict[str, Any]:
    """Return what the paper prints for a reproduction, with the title of the reproduction.

    Raises:
        ConfigError: There is no such reproduction.
    """
    known = papers()
    if name not in known:
        raise ConfigError(f"unknown reproduction {name!r}; {nearest(name, known)}")
    return known[name]


def claims() -> dict[str, list[dict[str, Any]]]:
    """Return the claims of each paper."""
    return config.read(FOLDER / "claims.toml")


def contents() -> dict[str, dict[str, Any]]:
    """Return the tables and figures of each paper."""
    return config.read(FOLDER / "contents.toml")


def table(name: str) -> Table:
    """Return the experiment of a reproduction."""
    return config.read(FOLDER / f"{name}.toml")


def cells(name: str) -> list[Cell]:
    """Return all runs of a reproduction, as the file has them."""
    return _cells(FOLDER / f"{name}.toml")


@functools.cache
def _cells(file: pathlib.Path) -> list[Cell]:
    return Sweep.plan(config.read(file), [], []).cells


def stored(name: str) -> pathlib.Path:
    """Return the file of the runs that were made."""
    return FOLDER / "results" / f"{name}.json"


def targets(name: str) -> list[str]:
    """Return the accuracies, such as "0.75", that figures like `target_rounds@0.75` of a reproduction need."""
    printed = paper(name)
    named = [printed.get("figure", ""), *printed.get("values", {}).get("names", [])]
    for claim in (claim for group in claims().values() for claim in group):
        labels = [label for each in claim.get("cells", []) for label in ([each] if isinstance(each, str) else each)]
        if name == claim.get("reproduction") or any(label.startswith(f"{name}::") for label in labels):
            named += [claim.get("figure", "")]
    named += [f"@{accuracy:g}" for accuracy in printed.get("rounds_to", {}).get("accuracies", [])]
    return sorted({figure.partition("@")[2] for figure in named if "@" in figure})
