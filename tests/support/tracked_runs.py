"""A small run that can be stopped and resumed."""

from __future__ import annotations

import json
import pathlib
import threading
from collections.abc import Sequence
from typing import Any

import offbeat as ob
from offbeat.data import Digits
from offbeat.runs import api
from offbeat.runs.callbacks import Callback
from offbeat.runs.data import Data
from offbeat.runs.drive import alone
from offbeat.runs.experiment import Experiment
from offbeat.runs.result import ProgressSnapshot, RunResult


def small(rounds: int = 12, **more: Any) -> Experiment:
    return Experiment(
        data=Data(source=Digits(), clients=10),
        algorithm=ob.CA2FL(),
        scheduler=ob.Buffered(concurrency=6, buffer=3),
        rounds=rounds,
        evaluation=ob.Evaluation(every=2),
        executor="vectorized",
        **more,
    )


def stopped(out: pathlib.Path, version: int, callbacks: Sequence[Callback]) -> RunResult:
    """Run up to a version and stop."""
    stop = threading.Event()

    def watch(snapshot: ProgressSnapshot) -> None:
        if snapshot.counters.version >= version:
            stop.set()

    result = alone(api.begin(small(), stop, out=out, watch=watch, callbacks=callbacks))
    assert result.interrupted
    return result


def lines(folder: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
