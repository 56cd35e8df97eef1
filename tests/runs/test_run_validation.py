"""Validation of updates in a run, from TOML to summary, log and checkpoint."""

from __future__ import annotations

import pathlib
import threading
from typing import Any

import numpy as np
import pytest

from offbeat.errors import ConfigError
from offbeat.runs import api, config
from offbeat.runs.drive import alone
from offbeat.runs.folder import STATUS
from offbeat.runs.result import RunResult

BASE: dict[str, Any] = {
    "rounds": 8,
    "executor": "sequential",
    "algorithm": {"name": "ca2fl"},
    "scheduler": {"concurrency": 6, "buffer": 3},
    "data": {"name": "digits", "clients": 10, "partition": {"name": "dirichlet", "alpha": 0.3}},
    "model": {"name": "lr"},
    "client": {"lr": 0.1, "batch_size": 16},
    "evaluation": {"every": 4},
}


def run(folder: pathlib.Path | None, **validation: Any) -> RunResult:
    return api.execute(config.parse(BASE | {"validation": validation}), out=folder)


def test_long_updates_are_refused_counted_and_logged(tmp_path: pathlib.Path) -> None:
    free = run(tmp_path / "free")
    assert free.summary["refused"] == {}
    result = run(tmp_path / "run", max_norm=0.8)
    refused = result.summary["refused"]
    assert refused.keys() == {"norm-exceeded"}
    log = np.load(tmp_path / "run" / "updates.npy")
    assert (log["status"] == STATUS.index("norm-exceeded")).sum() == refused["norm-exceeded"] > 0
    assert (log["status"] == 0).sum() == result.summary["updates"]
    assert log["bytes"].sum() == result.summary["bytes_up"], "what is refused has come all the same"
    assert result.summary["accuracy"] != free.summary["accuracy"]


def test_clipped_updates_all_count() -> None:
    result = run(None, max_norm=0.1, beyond_norm="clip")
    assert result.summary["refused"] == {}
    moved = float((result.x - run(None, max_norm=1e-6, beyond_norm="clip").x).norm())
    assert 0 < moved <= 8 * 3 * 0.1  # CA²FL's steps are made of at most three clipped vectors


def test_stale_updates_are_refused(tmp_path: pathlib.Path) -> None:
    result = run(tmp_path / "run", max_staleness=0)
    assert result.summary["refused"].keys() == {"too-stale"}
    assert result.summary["staleness_max"] == 0


def test_a_resumed_run_continues_its_counts(tmp_path: pathlib.Path) -> None:
    stop = threading.Event()

    def snapshot(seen: Any) -> None:
        if seen.counters.version >= 4:
            stop.set()

    whole = run(tmp_path / "whole", max_norm=0.8)
    experiment = config.parse(BASE | {"validation": {"max_norm": 0.8}})
    assert alone(api.begin(experiment, stop, out=tmp_path / "part", watch=snapshot)).interrupted
    again = api.resume(tmp_path / "part")
    assert again.summary["refused"] == whole.summary["refused"]
    logs = [(tmp_path / name / "updates.npy").read_bytes() for name in ("whole", "part")]
    assert logs[0] == logs[1]


def test_mistakes() -> None:
    for table, key in (
        ({"max_norm": -1}, "validation.max_norm"),
        ({"most": 1}, "validation.most"),
        ({"beyond_norm": "x"}, "validation.beyond_norm"),
    ):
        with pytest.raises(ConfigError) as caught:
            config.parse(BASE | {"validation": table})
        assert caught.value.key == key
