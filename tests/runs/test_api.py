"""`ob.run` with Python objects: messages for wrong arguments, resuming, virtual time."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import interrupt_after
from torch import nn

import offbeat as ob
from offbeat.data import Synthetic
from offbeat.environment import Battery, Bernoulli, Constant, Speeds
from offbeat.models import LR
from offbeat.runs.folder import read_status


def settings(**more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "data": Synthetic(examples=300, test_examples=60, features=12, classes=3),
        "clients": 6,
        "model": LR(),
        "algorithm": ob.FedBuff(),
        "client": ob.SGD(lr=0.1, epochs=1, batch_size=8),
        "scheduler": ob.Buffered(concurrency=4, buffer=2),
        "rounds": 20,
        "evaluation": 5,
    }
    return base | more


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        ([np.zeros(300, dtype=bool)] * 2, "client 0 has bool, integers expected; convert a mask"),
        ([[0.5, 1.0], [2.0]], "client 0 has float64"),
        ({0: [1, 2], 1: [3]}, "one array of indices per client expected, got dict"),
        (np.arange(6), "client 0 has an array of shape"),
        ([["a"], ["b"]], "integers expected"),
        ([[0, 1], []], "client 1 has no data"),
        ([[0, 999]], "client 0: index 999"),
    ],
)
def test_invalid_partitions_are_rejected(partition: Any, expected: str) -> None:
    with pytest.raises(ob.DataError, match=expected):
        ob.run(**settings(partition=partition, clients=None))


def test_a_run_with_python_objects_is_resumed_by_the_same_call(tmp_path: pathlib.Path) -> None:
    torch.manual_seed(3)
    own = settings(model=nn.Linear(12, 3), partition=[np.arange(i, 300, 6) for i in range(6)], clients=None)
    whole = ob.run(**own, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt, match="interrupted at round"):
        ob.run(**own, out=tmp_path / "cut", watch=interrupt_after(7))
    with pytest.raises(ob.ConfigError, match=r"Linear was passed from Python .* run the same program again"):
        ob.resume(tmp_path / "cut")
    with pytest.raises(ob.RunFolderError, match="contains another experiment"):
        ob.run(**(own | {"rounds": 21}), out=tmp_path / "cut", resume=True)
    again = ob.run(**own, out=tmp_path / "cut", resume=True)
    assert torch.equal(again.x, whole.x)
    assert (tmp_path / "cut/updates.npy").read_bytes() == (tmp_path / "whole/updates.npy").read_bytes()


def test_virtual_time_is_not_overshot() -> None:
    result = ob.run(
        **settings(rounds=10_000, virtual_seconds=9.5, environment=ob.Environment(delay=Constant(value=1.0)))
    )
    assert result.summary["virtual_seconds"] == 9.5
    assert result.summary["rounds"] == 9 * 2, "four clients a second, two a step; what would arrive at 10 s does not"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (ob.Environment(availability=Bernoulli(probability=0.0)), "no client is ever available"),
        (
            ob.Environment(availability=Bernoulli(probability=(0.5, 0.5))),
            "environment.availability.probability: 2 values for 6 clients",
        ),
        (
            ob.Environment(delay=Speeds(seconds_per_step=(0.1,))),
            "environment.delay.seconds_per_step: 1 values for 6 clients",
        ),
    ],
)
def test_environments_that_do_not_fit_are_rejected_at_once(
    environment: ob.Environment, expected: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(ob.ConfigError, match=expected):
        ob.run(**settings(environment=environment), out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_run_in_which_nothing_ever_arrives_ends_with_an_error(tmp_path: pathlib.Path) -> None:
    environment = ob.Environment(delay=Constant(value=1.0), trip_timeout=0.5)
    with pytest.raises(ob.ConfigError, match=r"no update was accepted.*check environment\.trip_timeout"):
        ob.run(**settings(environment=environment), out=tmp_path / "run")
    assert read_status(tmp_path / "run")["state"] == "failed"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"executor": "vectorised"},
            "executor: 'vectorised' is not one of 'auto', 'sequential', 'vectorized', 'graphs', 'processes', 'ray'",
        ),
        ({"device": "gpu"}, "device: 'gpu' is not one of"),
        ({"rounds": 2.5}, "rounds: 2.5 is not an integer ≥ 1"),
        ({"clients": 20.0}, "clients: 20.0 is not an integer ≥ 1"),
        ({"algorithm": ob.FedBuff}, "is not an algorithm object"),
        ({"environment": {}}, "environment: {} is not a Environment"),
        ({"roundz": 3}, "roundz: unknown setting; .*Did you mean 'rounds'"),
        ({"evaluation": ob.Evaluation(target=0.5), "client": None}, "client: None is not a ClientRule"),
    ],
)
def test_wrong_arguments_from_python_get_the_same_messages(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(ob.ConfigError, match=expected):
        ob.run(**settings(**change))
    for wrong in (lambda: ob.SGD(lr="0.1"), lambda: ob.algorithms.MFCA2FL(bits=3), lambda: ob.Evaluation(target="85")):  # type: ignore[arg-type]
        with pytest.raises(ob.ConfigError):
            wrong()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"algorithm": ob.algorithms.FedLuck(), "scheduler": ob.Periodic()},
            r"compression\.upload: FedLuck chooses the compression rate",
        ),
        (
            {
                "algorithm": ob.algorithms.FedDyn(alpha=1.0),
                "client": ob.client_rules.Dyn(),
                "scheduler": ob.Rounds(concurrency=2),
            },
            r"algorithm\.alpha: 1, but client\.alpha is 0\.01",
        ),
        (
            {
                "algorithm": ob.algorithms.DuDeASGD(),
                "client": ob.SGD(steps=1),
                "scheduler": ob.schedulers.PerArrival(concurrency=2),
                "environment": ob.Environment(local_work=Battery()),
            },
            r"environment\.local_work: DuDeASGD determines",
        ),
        ({"scheduler": ob.Rounds(concurrency=2, probabilities=(0.0,) * 6)}, r"scheduler\.probabilities"),
        (
            {"algorithm": ob.algorithms.DuDeASGD(), "scheduler": ob.schedulers.PerArrival(concurrency=2)},
            r"client\.steps: DuDeASGD is defined",
        ),
    ],
)
def test_rules_report_their_requirements(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(ob.ConfigError, match=expected):
        ob.run(**settings(**change))


def test_numpy_numbers_are_numbers(tmp_path: pathlib.Path) -> None:
    result = ob.run(
        **settings(seed=np.int64(1), rounds=np.int32(2), client=ob.SGD(lr=np.float64(0.125))), out=tmp_path / "run"
    )
    assert result.summary["seed"] == 1
    assert "lr = 0.125" in (tmp_path / "run/config.toml").read_text()
