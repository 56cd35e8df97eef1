"""Runs of all kinds are resumed exactly, or rejected with a message."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import torch
from tests.support import interrupt_after
from tests.support.experiments import experiment
from tests.support.local_loops import Distill, Remembering

import offbeat as ob
from offbeat.aggregation import Private, TrimmedMean
from offbeat.algorithms.optimizers import AMSGrad
from offbeat.algorithms.staleness import Polynomial
from offbeat.cache import ClientSide, Disk
from offbeat.compression import QSGD, TopK, Uniform
from offbeat.environment import ATTACKS, Battery, Bernoulli, Constant, Devices
from offbeat.models import MLP
from offbeat.runs import api, checkpoint_pacing
from offbeat.runs.result import ProgressSnapshot
from offbeat.server import checkpoint, session

EXACT: dict[str, dict[str, Any]] = {
    "scaffold, top-k with error feedback": {
        "client": ob.client_rules.Scaffold(lr=0.1, steps=3, batch_size=8),
        "compression": ob.Compression(upload=TopK(rate=0.2), error_feedback=True),
    },
    "scaffold, updates that are rejected": {
        "client": ob.client_rules.Scaffold(lr=0.1, steps=3, batch_size=8),
        "compression": ob.Compression(upload=TopK(rate=0.2), error_feedback=True),
        "validation": ob.UpdateValidator(max_staleness=0),
    },
    "a personal head with steps of its own, updates that are rejected": {
        "client": ob.client_rules.Scaffold(lr=0.1, steps=3, batch_size=8),
        "model": MLP(hidden=(8,)),
        "personalization": ob.Personalization(parameters=("3.*",), head_steps=2, fine_tune_steps=2),
        "compression": ob.Compression(upload=TopK(rate=0.2), error_feedback=True),
        "validation": ob.UpdateValidator(max_staleness=0),
        "evaluation": ob.Evaluation(every=5, per_label=True),
    },
    "memory on disk": {"algorithm": ob.CA2FL(cache=Disk())},
    "memory in two levels per tensor": {
        "algorithm": ob.algorithms.MFCA2FL(bits=2, levels=2, rounding="nearest", range="tensor")
    },
    "memory at the clients, decaying rate": {
        "algorithm": ob.MIFA(cache=ClientSide()),
        "client": ob.SGD(lr=0.2, schedule=ob.schedules.InverseDecay()),
        "scheduler": ob.schedulers.Available(),
        "environment": ob.Environment(delay=Constant(), availability=Bernoulli(probability=0.6)),
    },
    "fedluck": {
        "algorithm": ob.algorithms.FedLuck(),
        "scheduler": ob.Periodic(concurrency=6, period=2.0),
        "environment": ob.Environment(delay=Devices(median_up=200.0, median_step=0.05)),
        "compression": ob.Compression(upload=TopK()),
    },
    "anarchic with batteries": {
        "algorithm": ob.algorithms.AFACS(),
        "scheduler": ob.schedulers.Anarchic(buffer=2),
        "environment": ob.Environment(local_work=Battery(period=20.0)),
    },
    "amsgrad on calibrated updates, quantized both ways": {
        "algorithm": ob.CA2FL(eta=0.01, optimizer=AMSGrad()),
        "compression": ob.Compression(upload=QSGD(bits=4), download=Uniform(bits=8)),
    },
    "the last five models": {"algorithm": ob.algorithms.AFACD(), "scheduler": ob.Rounds(concurrency=3, last_models=5)},
    "gradients of the clients": {"evaluation": ob.Evaluation(every=5, gradient_clients=3)},
    "feddyn": {
        "algorithm": ob.algorithms.FedDyn(alpha=0.1),
        "client": ob.client_rules.Dyn(alpha=0.1, lr=0.1),
        "scheduler": ob.Rounds(concurrency=3),
    },
    "a trimmed mean of stale updates": {
        "algorithm": ob.FedBuff(aggregator=TrimmedMean(trim=1), staleness=Polynomial()),
        "scheduler": ob.Continuous(concurrency=5, buffer=3),
    },
    "private noise": {
        "algorithm": ob.algorithms.FedAdam(aggregator=Private(clip=0.5, noise_multiplier=0.3)),
        "scheduler": ob.Continuous(concurrency=4, buffer=3),
    },
    "a loop of its own with state, updates that are rejected": {
        "client": Distill(lr=0.01, steps=3, batch_size=8),
        "compression": ob.Compression(upload=TopK(rate=0.2), error_feedback=True),
        "validation": ob.UpdateValidator(max_staleness=0),
    },
    "state of several shapes": {
        "client": Remembering(lr=0.02, steps=3, batch_size=8, schedule=ob.schedules.InverseDecay()),
        "validation": ob.UpdateValidator(max_staleness=1),
        "executor": "vectorized",
    },
    "a class of torch": {
        "client": ob.TorchOptimizer(torch.optim.NAdam, lr=0.01, steps=3, batch_size=8, betas=(0.8, 0.9)),
    },
    "aced, devices that leave": {
        "algorithm": ob.algorithms.ACED(max_age=5),
        "scheduler": ob.schedulers.PerArrival(concurrency=4),
        "environment": ob.Environment(availability=Bernoulli(probability=0.7), on_leave="lost", trip_timeout=8.0),
    },
    **{
        f"attack: {name}": {
            "environment": ob.Environment(attack=kind(share=0.5)),
            "compression": ob.Compression(upload=TopK(rate=0.3), error_feedback=True),
        }
        for name, kind in ATTACKS.items()
    },
}


@pytest.mark.parametrize("name", EXACT)
def test_everything_is_resumed_exactly(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes checkpoints in between and client state."""
    monkeypatch.setattr(checkpoint_pacing, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint_pacing, "MAX_SHARE", 1e9)
    described = experiment(**({"client": ob.SGD(lr=0.1, steps=3, batch_size=8)} | EXACT[name]))
    whole = api.execute(described, out=tmp_path / "whole")
    assert api.execute(described, out=tmp_path / "cut", watch=interrupt_after(6)).interrupted
    again = api.resume(tmp_path / "cut")
    assert torch.equal(again.x, whole.x)
    assert (tmp_path / "cut/updates.npy").read_bytes() == (tmp_path / "whole/updates.npy").read_bytes()
    assert untimed(again.summary) == untimed(whole.summary)
    assert again.client_evaluations == whole.client_evaluations
    assert again.label_evaluations == whole.label_evaluations
    for file in ("client_metrics.jsonl", "label_metrics.jsonl", "personal.safetensors"):
        contents = [
            path.read_bytes() if path.exists() else b"" for path in (tmp_path / "whole" / file, tmp_path / "cut" / file)
        ]
        assert contents[0] == contents[1]
    assert not (tmp_path / "cut" / session.CACHE_FOLDER).exists()


def untimed(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the figures that do not depend on the machine's speed."""
    timed = ("wall_seconds", "client_steps_per_second", "executors_tried")
    return {name: value for name, value in summary.items() if name not in timed}


def test_two_processes_do_not_write_into_one_folder(tmp_path: pathlib.Path) -> None:
    tried: list[str] = []

    def watch(snapshot: ProgressSnapshot) -> None:
        if not tried:
            with pytest.raises(ob.RunFolderError, match="another process is writing") as caught:
                api.resume(tmp_path / "run")
            tried.append(str(caught.value))

    api.execute(experiment(), out=tmp_path / "run", watch=watch)
    assert tried
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "finished"


def test_a_folder_whose_config_was_changed_is_not_resumed(tmp_path: pathlib.Path) -> None:
    api.execute(experiment(), out=tmp_path / "run", watch=interrupt_after(7))
    config = tmp_path / "run/config.toml"
    config.write_text(config.read_text().replace("seed = 0", "seed = 1"))
    with pytest.raises(ob.RunFolderError, match=r"the config or the model has changed"):
        api.resume(tmp_path / "run")


def test_a_folder_with_a_lost_file_is_not_resumed(tmp_path: pathlib.Path) -> None:
    api.execute(experiment(), out=tmp_path / "run", watch=interrupt_after(7))
    (tmp_path / "run/metrics.jsonl").unlink()
    with pytest.raises(ob.RunFolderError, match=r"metrics\.jsonl or updates\.npy is missing"):
        api.resume(tmp_path / "run")


def test_a_resumed_run_that_fails_keeps_its_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run must not delete what an earlier process wrote."""
    api.execute(experiment(), out=tmp_path / "run", watch=interrupt_after(7))
    checkpoint.clear(tmp_path / "run/checkpoint")

    def full(self: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(session.ServerSession, "turn", full)
        with pytest.raises(ob.RunFolderError, match="no space left"):
            api.resume(tmp_path / "run")
    assert api.resume(tmp_path / "run").summary["rounds"] == 20


def test_pruning_keeps_two_intact_checkpoints(tmp_path: pathlib.Path) -> None:
    for n in range(3):
        checkpoint.save(tmp_path, {"n": n})
    (tmp_path / "00000003.json").unlink()  # killed between the two files
    checkpoint.save(tmp_path, {"n": 3})
    newest = tmp_path / "00000004.pt"
    newest.write_bytes(newest.read_bytes()[:-50])
    state = checkpoint.load(tmp_path, "cpu")
    assert state is not None
    assert state["n"] == 1
