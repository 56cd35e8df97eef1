"""Short versions of the reproductions that run on a CPU: few rounds, one seed, loose bounds."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest
from tests.support import SHARED

from offbeat.reproductions import files
from offbeat.runs.sweep import Sweep

MNIST = SHARED / "data"
needs_mnist = pytest.mark.skipif(not (MNIST / "mnist").is_dir(), reason="needs MNIST in ../shared/data")


def short(name: str, labels: list[str], out: pathlib.Path, **changes: Any) -> dict[str, dict[str, Any]]:
    """Return the summaries of some cells by label, for the file's first seed."""
    table = files.table(name)
    cells = [cell for cell in Sweep.plan(table, [], table.get("seeds", [0])[:1]).cells if cell.label in labels]
    cells = [dataclasses.replace(cell, table=cell.table | {"executor": "vectorized"} | changes) for cell in cells]
    ended = Sweep(cells).run(out, MNIST, lambda cells: [None] * len(cells))
    return {cell.label: summary or {} for cell, summary in ended}


@pytest.mark.parametrize(("label", "largest", "mean"), [("M_c=20 M=10", 8, 1.0), ("M_c=20 M=5", 15, 3.0)])
def test_delays_of_ca2fl(label: str, largest: int, mean: float, tmp_path: pathlib.Path) -> None:
    """Mean staleness is M_c/M − 1 when every update is used: a buffer of half as many makes it three times as large."""
    found = short("ca2fl-delay", [label], tmp_path, rounds=150)[label]
    assert found["staleness_mean"] == pytest.approx(mean, rel=0.1)
    assert 1 < found["staleness_max"] <= largest


@needs_mnist
def test_anarchy_costs_little_on_mnist(tmp_path: pathlib.Path) -> None:
    row = "p=10 5of10 5 steps"
    labels = [f"{row} synchronous constant", f"{row} asynchronous dynamic"]
    found = short("afl-mnist", labels, tmp_path, rounds=40, evaluation={"every": 1})
    calm, wild = (summary["accuracy_last10"] for summary in found.values())
    assert min(calm, wild) > 0.8
    assert abs(calm - wild) < 0.04


@needs_mnist
def test_a_cache_corrects_biased_arrivals(tmp_path: pathlib.Path) -> None:
    """With one class per worker, biased arrivals cost AFA-CD accuracy, and AFA-CS less."""
    labels = [f"p=1 {rule} {arrivals}" for rule in ("AFA-CD", "AFA-CS") for arrivals in ("uniform", "biased")]
    ended = short("afl-bias", labels, tmp_path, rounds=40, evaluation={"every": 1})
    found = {label: summary["accuracy_last10"] for label, summary in ended.items()}
    assert found["p=1 AFA-CD biased"] < found["p=1 AFA-CD uniform"]
    assert found["p=1 AFA-CS biased"] > found["p=1 AFA-CD biased"]


@needs_mnist
def test_asynchrony_needs_less_time(tmp_path: pathlib.Path) -> None:
    found = short("afl-wallclock", ["AFL", "FedAvg"], tmp_path, rounds=80)
    assert found["AFL"]["target_seconds"] < 0.7 * found["FedAvg"]["target_seconds"]


@needs_mnist
def test_a_cache_corrects_unavailability(tmp_path: pathlib.Path) -> None:
    """With three local steps and a larger rate than in the file, so that fifty rounds are enough."""
    labels = [f"{rule} p_min=0.1" for rule in ("MIFA", "Biased FedAvg", "FedAvg (S = 100)")]
    client = files.table("mifa-mnist")["client"] | {"steps": 3, "lr": 0.1}
    del client["epochs"]
    found = short("mifa-mnist", labels, tmp_path, rounds=50, virtual_seconds=50.0, client=client)
    mifa, biased, waiting = (found[label]["accuracy"] for label in labels)
    assert mifa > biased + 0.02 > waiting
