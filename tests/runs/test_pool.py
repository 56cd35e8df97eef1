"""Runs that share model and data are trained in one stack and give the results of separate runs."""

from __future__ import annotations

import pathlib
import threading
import types
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import offbeat as ob
from offbeat.errors import DivergenceError, RunFolderError
from offbeat.executors import Vectorized
from offbeat.executors.base import Task, TrainingOutcome
from offbeat.runs import api, checkpoint_pacing, config, run
from offbeat.runs.custom import CustomModel
from offbeat.runs.data import Data
from offbeat.runs.drive import together
from offbeat.runs.experiment import Experiment
from offbeat.runs.result import RunResult
from offbeat.runs.run import Run
from offbeat.runs.sweep import Sweep, _pools
from offbeat.server import checkpoint

BASE: dict[str, Any] = {
    "rounds": 6,
    "executor": "vectorized",
    "algorithm": {"name": "fedbuff"},
    "scheduler": {"concurrency": 6, "buffer": 3},
    "data": {"name": "digits", "clients": 10, "partition": {"name": "dirichlet", "alpha": 0.3}},
    "model": {"name": "mlp", "hidden": [16]},
    "client": {"name": "sgd", "lr": 0.1, "batch_size": 16},
    "evaluation": {"every": 2},
}


def weights(folder: pathlib.Path) -> torch.Tensor:
    return torch.cat([value.flatten() for _, value in sorted(load_file(folder / "model.safetensors").items())])


def sweep(plan: Sweep, out: pathlib.Path) -> dict[str, dict[str, Any] | None]:
    return {cell.folder: summary for cell, summary in plan.run(out, None, lambda cells: [None] * len(cells))}


def test_a_pool_gives_what_separate_runs_give(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs differ in algorithm, seed (hence partition and initial model), rate and local rule."""
    sizes: list[int] = []
    plain = Vectorized.train_all

    def counted(self: Vectorized, tasks: list[Task]) -> list[TrainingOutcome]:
        sizes.append(len({id(work) for work, _ in tasks}))
        return plain(self, tasks)

    monkeypatch.setattr(Vectorized, "train_all", counted)
    clients = "client={name='sgd',lr=0.1,batch_size=16},{name='prox',lr=0.2,mu=0.3,batch_size=16}"
    plan = Sweep.plan(BASE, ["algorithm.name=fedbuff,ca2fl,fedasync", clients, "client.lr=0.05,0.1"], [0, 1])
    assert len(sweep(plan, tmp_path / "pool")) == len(plan.cells) == 24
    assert max(sizes) > 10, "jobs of many runs were in one stack"
    for cell in plan.cells:
        api.execute(config.parse(cell.table), out=tmp_path / "alone" / cell.folder)
        pooled, alone = (weights(tmp_path / kind / cell.folder) for kind in ("pool", "alone"))
        assert (pooled - alone).norm() < 1e-4 * alone.norm(), cell.folder
        rows = [(tmp_path / kind / cell.folder / "updates.npy").read_bytes() for kind in ("pool", "alone")]
        assert rows[0] == rows[1], "who came when does not depend on the rest of the pool"


def test_a_diverging_run_does_not_affect_the_others(tmp_path: pathlib.Path) -> None:
    plan = Sweep.plan(BASE, ["client.lr=0.1,1e30"], [0])
    assert len(_pools(plan.cells, None)) == 1
    good, bad = sweep(plan, tmp_path).values()
    assert good
    assert good["rounds"] == 6
    assert bad == {}


def test_an_interrupted_pool_resumes(tmp_path: pathlib.Path) -> None:
    plan = Sweep.plan(BASE, ["algorithm.name=fedbuff,ca2fl"], [0, 1])
    stop = threading.Event()

    def snapshot(seen: Any) -> None:
        if seen.counters.version >= 2:
            stop.set()

    runs = [
        api.begin(config.parse(cell.table), stop, out=tmp_path / "a" / cell.folder, watch=snapshot)
        for cell in plan.cells
    ]
    ended = together(runs)
    assert all(isinstance(result, RunResult) and result.interrupted for result in ended)
    again, whole = sweep(plan, tmp_path / "a"), sweep(plan, tmp_path / "b")
    assert again.keys() == whole.keys()
    for folder in whole:
        torch.testing.assert_close(weights(tmp_path / "a" / folder), weights(tmp_path / "b" / folder))


def test_checkpoints_of_a_pool_take_at_most_their_share_of_the_time(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a fake clock: a checkpoint takes a second, reading the clock a tenth of one."""
    clock = {"now": 0.0, "saving": 0.0}

    def monotonic() -> float:
        clock["now"] += 0.1
        return clock["now"]

    def save(*_: Any) -> None:
        clock["now"] += 1.0
        clock["saving"] += 1.0

    monkeypatch.setattr(run, "time", types.SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(checkpoint_pacing, "MIN_SECONDS", 5.0)
    monkeypatch.setattr(checkpoint, "save", save)
    cells = Sweep.plan(BASE | {"rounds": 100}, [], [0, 1, 2, 3]).cells
    together([api.begin(config.parse(c.table), threading.Event(), out=tmp_path / "a" / c.folder) for c in cells])
    assert 4 < clock["saving"] <= checkpoint_pacing.MAX_SHARE * clock["now"] + len(cells)
    before = clock["saving"]
    monkeypatch.setattr(checkpoint_pacing, "BYTES_PER_SECOND", 1.0)  # so that the first would take hours
    together([api.begin(config.parse(c.table), threading.Event(), out=tmp_path / "b" / c.folder) for c in cells])
    assert clock["saving"] == before


def test_an_error_in_one_run_of_a_pool_leaves_the_others_resumable(tmp_path: pathlib.Path) -> None:
    plan = Sweep.plan(BASE, [], [0, 1])
    stop = threading.Event()
    runs = [api.begin(config.parse(cell.table), stop, out=tmp_path / cell.folder) for cell in plan.cells]

    def failing(seen: Any) -> None:
        if seen.counters.version >= 3:
            raise RunFolderError("no space left")

    runs[0].watch = failing
    with pytest.raises(RunFolderError, match="no space left"):
        together(runs)
    assert '"interrupted"' in (tmp_path / "run/seed-1/status.json").read_text()
    assert api.resume(tmp_path / "run/seed-1").summary["rounds"] == 6


def test_only_stackable_runs_are_pooled() -> None:
    def pools(grid: list[str], **change: Any) -> list[int]:
        return [len(pool) for pool in _pools(Sweep.plan(BASE | change, grid, [0, 1]).cells, None)]

    assert pools(["algorithm.name=fedbuff,mifa"]) == [4]
    assert pools(["model.hidden=[16],[8]"]) == [2, 2]
    assert pools([], executor="sequential") == [1, 1], "nothing is gained"
    network = {"name": "afga", "topology": "ring"}
    rounds = {"name": "rounds", "concurrency": 4}
    assert pools([], algorithm=network, scheduler=rounds, client={"name": "sgd", "steps": 2}) == [1, 1]


def test_models_whose_fixed_part_differs_are_not_pooled() -> None:
    """A frozen layer is not part of x, so it must not come from another run's model."""

    def frozen() -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
        module[1].requires_grad_(False)
        return module

    def run(seed: int) -> Run:
        experiment = Experiment(
            data=Data(clients=10),
            model=CustomModel(make=frozen),
            scheduler=ob.Buffered(concurrency=4, buffer=2),
            executor="vectorized",
            seed=seed,
        )
        return Run(experiment.assemble())

    assert run(0).assembly.pool != run(1).assembly.pool


def test_divergence_is_an_error_outside_of_a_pool() -> None:
    experiment = config.parse(BASE | {"client": {"name": "sgd", "lr": 1e30}})
    with pytest.raises(DivergenceError):
        api.execute(experiment)
