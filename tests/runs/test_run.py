"""Runs from Python and the files that they write."""

from __future__ import annotations

import json
import pathlib
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.support.custom_objects import Points
from torch import nn

import offbeat as ob
from offbeat.algorithms import ALGORITHMS
from offbeat.cache import CACHES
from offbeat.client.rules import CLIENT_RULES
from offbeat.compression import TopK
from offbeat.data import Digits
from offbeat.environment import Devices, HalfNormal
from offbeat.models import LR, MLP
from offbeat.runs.folder import UPDATE, UpdateLog
from offbeat.runs.result import ProgressSnapshot
from offbeat.runs.summary import late_mean
from offbeat.scheduling import SCHEDULERS

REQUIRED = {
    "algorithm", "seed", "accuracy", "accuracy_last10", "best_accuracy", "rounds", "updates", "virtual_seconds",
    "wall_seconds", "client_steps", "client_steps_per_second", "bytes_up", "bytes_down", "staleness_mean",
    "staleness_max",
}  # fmt: skip


def small(**more: Any) -> ob.Result:
    settings: dict[str, Any] = {
        "data": Digits(),
        "clients": 20,
        "partition": ob.partitions.Dirichlet(alpha=0.3),
        "model": LR(),
        "algorithm": ob.CA2FL(),
        "client": ob.SGD(lr=0.1, epochs=1, batch_size=16),
        "scheduler": ob.Buffered(concurrency=8, buffer=4),
        "rounds": 12,
        "evaluation": 4,
    }
    return ob.run(**(settings | more))


def test_the_run_folder_is_complete_and_consistent(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "run"
    result = small(out=out, environment=ob.Environment(delay=HalfNormal(), loss=0.2, trip_timeout=6.0))
    summary = json.loads((out / "summary.json").read_text())
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    log = np.load(out / "updates.npy")
    assert summary.keys() >= REQUIRED
    assert summary["algorithm"] == "ca2fl"
    assert [m["version"] for m in metrics] == [0, 4, 8, 12]
    assert summary["accuracy"] == metrics[-1]["accuracy"] == result.accuracy
    assert summary["best_accuracy"] == max(m["accuracy"] for m in metrics)
    assert summary["accuracy_last10"] is None, "there are only four evaluations"

    taken = log[log["status"] == 0]
    assert summary["rounds"] == 12
    assert summary["updates"] == len(taken) == 48
    assert summary["lost"] == (log["status"] == 1).sum() > 0
    assert summary["virtual_seconds"] == log["time"][-1]
    assert (np.diff(log["time"]) >= 0).all()
    assert (log["time"] > log["sent"]).all()
    assert summary["staleness_mean"] == pytest.approx(taken["staleness"].mean())
    assert summary["staleness_max"] == taken["staleness"].max()
    assert summary["client_steps"] == taken["steps"].sum()
    dim = 64 * 10 + 10
    assert summary["bytes_up"] == taken["bytes"].sum() == 48 * 4 * dim
    # Everything that ended was sent, and so was what is still in flight.
    assert summary["bytes_down"] % (4 * dim) == 0
    assert summary["bytes_down"] // (4 * dim) >= len(log)

    model = load_file(out / "model.safetensors")
    assert torch.equal(torch.cat([model["1.weight"].flatten(), model["1.bias"]]), result.x)
    assert json.loads((out / "status.json").read_text())["state"] == "finished"
    assert not list((out / "checkpoint").iterdir())
    assert 'name = "ca2fl"' in (out / "config.toml").read_text()
    assert 'executor = "vectorized"' in (out / "config.toml").read_text(), "resolved"


def test_same_seed_same_bytes_other_seed_other_bytes(tmp_path: pathlib.Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        small(out=tmp_path / name, seed=seed, algorithm=ob.algorithms.MFCA2FL(bits=2))
    for file in ("model.safetensors", "updates.npy", "config.toml"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert (tmp_path / "a/model.safetensors").read_bytes() != (tmp_path / "c/model.safetensors").read_bytes()


def test_both_executors_give_the_same_trajectory() -> None:
    for model in (LR(), MLP(hidden=(16,))):
        one, other = (small(model=model, executor=name, rounds=8) for name in ("sequential", "vectorized"))
        torch.testing.assert_close(one.x, other.x, rtol=1e-4, atol=1e-5)
        assert one.summary["virtual_seconds"] == other.summary["virtual_seconds"]


def test_custom_module_dataset_and_partition() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(12, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layer(x)
            return out

    parts = [np.arange(i, 300, 6) for i in range(6)]
    result = ob.run(
        data=ob.from_datasets(Points(300, 0), Points(100, 1)),
        partition=parts,
        model=Net,
        algorithm=ob.FedBuff(),
        client=ob.SGD(lr=0.2, steps=4, batch_size=10),
        scheduler=ob.Continuous(concurrency=4, buffer=2),
        rounds=40,
    )
    assert result.accuracy > 0.8
    assert result.summary["clients"] == 6
    assert result.folder is None


def test_a_custom_module_keeps_its_initial_weights_and_is_not_modified() -> None:
    torch.manual_seed(4)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    before = [p.detach().clone() for p in net.parameters()]
    first = small(model=net, seed=0).evaluations[0]["loss"]
    assert small(model=net, seed=0).evaluations[0]["loss"] == first
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))


def test_virtual_time_ends_a_run() -> None:
    result = small(rounds=100_000, virtual_seconds=15.0)
    assert 15.0 <= result.summary["virtual_seconds"] < 25.0
    assert result.evaluations[-1]["version"] == result.summary["rounds"]


def test_time_to_target_is_that_of_the_first_evaluation_that_reaches_it() -> None:
    result = small(rounds=40, evaluation=ob.Evaluation(every=2, target=0.5))
    first = next(m for m in result.evaluations if m["accuracy"] >= 0.5)
    assert result.summary["target_seconds"] == first["virtual_seconds"]
    assert small(rounds=2, evaluation=ob.Evaluation(target=0.99)).summary["target_seconds"] is None


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_runs_under_its_schedulers_and_no_other(name: str) -> None:
    rule = ALGORITHMS[name]
    client: ob.ClientRule = ob.SGD(lr=0.1, steps=1 if rule.single_step else 2, batch_size=16)
    if rule.client_rule in CLIENT_RULES:
        client = CLIENT_RULES[rule.client_rule](lr=0.1, steps=client.steps, batch_size=16)
    for dispatch_name, kind in SCHEDULERS.items():
        names = {field.name for field in fields(kind)}
        scheduler = kind(**{k: v for k, v in (("concurrency", 8), ("buffer", 4)) if k in names})
        algorithm = ob.algorithms.CAFGA(clusters=4) if name == "cafga" else rule()
        settings = {
            "algorithm": algorithm,
            "scheduler": scheduler,
            "client": client,
            "environment": ob.Environment(delay=Devices()),
        }
        if name == "fedluck":
            settings["compression"] = ob.Compression(upload=TopK())
        if dispatch_name in rule.schedulers:
            assert small(rounds=3, **settings).summary["rounds"] == 3
        else:
            with pytest.raises(ob.ConfigError, match=f"scheduler.name: .* does not support '{dispatch_name}'"):
                small(**settings)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", [n for n, kind in ALGORITHMS.items() if "cache" in {f.name for f in fields(kind)}])
def test_every_rule_with_a_cache_supports_every_cache(name: str, cache: str) -> None:
    kind: Any = ALGORITHMS[name]
    if (name, cache) == ("aced", "client-side"):
        with pytest.raises(ob.ConfigError, match="cache: ACED drops old entries"):
            kind(cache=CACHES[cache]())
        return
    client = ob.SGD(lr=0.1, steps=1 if kind.single_step else 3, batch_size=16)
    dense, other = (
        small(algorithm=kind(cache=CACHES[m]()), scheduler=None, client=client, rounds=12) for m in ("dense", cache)
    )
    if cache == "quantized":
        assert not torch.equal(other.x, dense.x)
        assert (other.x - dense.x).norm() < 0.25 * dense.x.norm()
    else:
        assert torch.equal(other.x, dense.x), "the same trajectory wherever the rows are kept"


def test_a_progress_display_receives_snapshots() -> None:
    seen: list[tuple[int, int]] = []

    def watch(snapshot: ProgressSnapshot) -> None:
        seen.append((snapshot.counters.version, len(snapshot.metrics)))

    small(watch=watch)
    assert seen[0] == (0, 1)
    assert seen[-1] == (12, 4)


def test_a_folder_that_is_not_empty_is_not_touched(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(ob.RunFolderError, match="exists and is not empty"):
        small(out=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    finished = small(out=tmp_path / "run", rounds=1)
    assert finished.experiment is not None
    with pytest.raises(ob.RunFolderError, match=r"offbeat resume .*run"):
        ob.execute(finished.experiment, out=tmp_path / "run")


def test_early_divergence_is_recorded_and_the_folder_can_be_used_again(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ob.DivergenceError, match=r"client\.lr"):
        small(out=tmp_path / "run", client=ob.SGD(lr=1e38))
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert status["state"] == "failed"
    assert "client.lr" in status["error"]
    assert small(out=tmp_path / "run", rounds=1, resume=True).summary["rounds"] == 1, "another rate: a new run"
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "finished"


def test_late_divergence_leaves_a_complete_folder_marked_as_failed(tmp_path: pathlib.Path) -> None:
    """Weight decay beyond 2/lr makes x grow geometrically, so divergence takes a while."""
    with pytest.raises(ob.DivergenceError):
        small(out=tmp_path / "run", rounds=500, client=ob.SGD(lr=1.0, weight_decay=3.0), evaluation=1)
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert status["state"] == "failed"
    assert "finite" in status["error"] or "loss" in status["error"]
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert len([json.loads(line) for line in lines]) >= 2
    np.load(tmp_path / "run/updates.npy")
    assert not (tmp_path / "run/summary.json").exists()


def test_unknown_settings_are_named() -> None:
    with pytest.raises(ob.ConfigError, match="round: unknown setting"):
        small(round=3)


def test_the_update_log_can_be_read_while_it_grows_and_cut_back(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "updates.npy"
    log = UpdateLog(path)
    assert len(np.load(path)) == 0
    for n in range(10_000):
        log.append((float(n), n + 0.5, n, 1, 2, 3, 4, 0, 0.5))
    assert 4096 <= len(np.load(path)) <= 10_000
    log.close()
    rows = np.load(path)
    assert rows.dtype == UPDATE
    assert (rows["client"] == np.arange(10_000)).all()
    again = UpdateLog(path, 77)
    again.append((0.0, 0.0, 5, 0, 0, 0, 0, 1, 0.5))
    again.close()
    rows = np.load(path)
    assert len(rows) == 78
    assert rows["client"][-1] == 5


def test_a_late_mean_is_one_of_the_last_quarter() -> None:
    """The mean of a run's last ten evaluations says little about its end if they include the beginning."""

    def lines(every: int, rounds: int) -> list[dict[str, float]]:
        return [{"version": v, "accuracy": v / rounds} for v in range(0, rounds + 1, every)]

    assert late_mean(lines(10, 360), "accuracy") == pytest.approx(np.mean([v / 360 for v in range(270, 361, 10)]))
    assert late_mean(lines(10, 350), "accuracy") is None, "the first of them was at 260 of 350"
    assert late_mean(lines(1, 8), "accuracy") is None
    assert late_mean([], "accuracy") is None
