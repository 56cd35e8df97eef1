"""Small experiments that finish within a second."""

from __future__ import annotations

import pathlib
from typing import Any

from tests.support import interrupt_after

import offbeat as ob
from offbeat.data import Digits, Synthetic
from offbeat.runs import api
from offbeat.runs.data import Data
from offbeat.runs.experiment import Experiment


def experiment(**more: Any) -> Experiment:
    base: dict[str, Any] = {
        "data": Data(source=Synthetic(examples=300, test_examples=60, features=12, classes=3), clients=6),
        "algorithm": ob.CA2FL(),
        "scheduler": ob.Buffered(concurrency=4, buffer=2),
        "rounds": 20,
        "evaluation": ob.Evaluation(every=5),
    }
    return Experiment(**(base | more))


def small(rounds: int = 30) -> Experiment:
    return Experiment(
        data=Data(source=Digits(), clients=10),
        algorithm=ob.CA2FL(),
        scheduler=ob.Buffered(concurrency=6, buffer=3),
        rounds=rounds,
        evaluation=ob.Evaluation(every=3),
    )


def interrupted_at(path: pathlib.Path, version: int) -> None:
    """Run up to a version and stop."""
    assert api.execute(small(), out=path, watch=interrupt_after(version)).interrupted
