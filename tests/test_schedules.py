"""Schedules of the local and the server rate."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.support import experiments

import offbeat as ob
from offbeat.runs import api, config
from offbeat.runs.drive import alone
from offbeat.runs.run import Run
from offbeat.schedules import SCHEDULES, ConstantRate, CosineDecay, InverseDecay, Schedule, StepDecay, WarmUp


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (ConstantRate(), [1, 1, 1, 1]),
        (InverseDecay(), [1, 1 / 2, 1 / 3, 1 / 4]),
        (InverseDecay(offset=5), [1 / 5, 1 / 6, 1 / 7, 1 / 8]),
        (StepDecay(every=2, gamma=0.5), [1, 1, 0.5, 0.5]),
        (CosineDecay(steps=2), [1, 0.5, 0, 0]),
        (CosineDecay(steps=2, minimum=0.2), [1, 0.6, 0.2, 0.2]),
        (WarmUp(steps=2, then=InverseDecay()), [0.5, 1, 1, 0.5]),
        (
            ob.SGD(schedule=lambda t: 2.0**-t).schedule,  # type: ignore[arg-type]
            [1, 0.5, 0.25, 0.125],
        ),
    ],
)
def test_factors(schedule: Schedule, expected: list[float]) -> None:
    assert [schedule.factor(t) for t in range(4)] == pytest.approx(expected)


def rates(**change: Any) -> list[tuple[int, float]]:
    """Return the version and the rate of every job of a run, in the order of their training."""
    seen = []
    experiment = experiments.experiment(**{"executor": "sequential"} | change)
    assembly = experiment.assemble()
    begin = assembly.runtime.begin

    def watched(job: ob.Job) -> Any:
        seen.append((job.version, job.rate))
        return begin(job)

    assembly.runtime.begin = watched  # type: ignore[method-assign]
    alone(Run(assembly))
    return seen


@pytest.mark.parametrize(
    ("algorithm", "scheduler"),
    [
        (ob.FedBuff(), ob.Buffered(concurrency=4, buffer=2)),
        (ob.CA2FL(), ob.Continuous(concurrency=4, buffer=2)),
        (ob.FedAsync(), ob.schedulers.PerArrival(concurrency=3)),
        (ob.FedAvg(), ob.Rounds(concurrency=3)),
    ],
    ids=["fedbuff", "ca2fl", "fedasync", "fedavg"],
)
def test_the_local_rate_follows_the_version_under_every_rule(algorithm: ob.Algorithm, scheduler: Any) -> None:
    found = rates(
        algorithm=algorithm, scheduler=scheduler, client=ob.SGD(lr=0.1, schedule=InverseDecay(offset=2)), rounds=6
    )
    assert len({version for version, _ in found}) > 2
    assert all(rate == 1 / (version + 2) for version, rate in found)


def test_rounds_of_waiting_do_not_count() -> None:
    """MIFA waits until every client has reported; x does not move until then, and the rate stays."""
    environment = ob.Environment(availability=ob.availability.Bernoulli(probability=0.4))
    found = rates(
        algorithm=ob.MIFA(), scheduler=ob.schedulers.Available(), client=ob.SGD(schedule=InverseDecay()),
        environment=environment, rounds=12,
    )  # fmt: skip
    waiting = max(version for version, rate in found if rate == 1)
    assert waiting > 0, "some rounds must pass before everybody has reported"
    assert all(rate == 1 / max(1, version - waiting + 1) for version, rate in found)


def test_the_server_rate_scales_each_step() -> None:
    """With a buffer of one and updates that do not depend on x, steps are η_t·Δ."""
    whole, decayed = (
        api.execute(
            experiments.experiment(
                algorithm=ob.FedBuff(eta_schedule=schedule), rounds=1, scheduler=ob.Buffered(concurrency=2, buffer=2)
            )
        )
        for schedule in (ConstantRate(), InverseDecay(offset=4))
    )
    start = experiments.experiment().assemble()
    x0 = start.context.layout.read(start.context.module)
    torch.testing.assert_close(decayed.x - x0, (whole.x - x0) / 4, rtol=1e-4, atol=1e-7)


def halved(t: int, base: float = 0.5) -> float:
    return base**t


def test_schedules_in_toml() -> None:
    table: dict[str, Any] = {
        "client": {"name": "sgd", "schedule": {"name": "inverse", "offset": 1}},
        "algorithm": {
            "name": "fedbuff",
            "eta_schedule": {"name": "warm-up", "steps": 3, "then": {"name": "cosine", "steps": 9}},
        },
    }  # fmt: skip
    experiment = config.parse(table)
    assert experiment.client.schedule == InverseDecay(offset=1)
    assert experiment.algorithm.eta_schedule == WarmUp(steps=3, then=CosineDecay(steps=9))
    described = config.describe(experiment)
    assert config.parse(described) == experiment
    own = config.parse({"client": {"schedule": {"name": "tests.test_schedules:halved", "base": 0.25}}})
    assert own.client.schedule.factor(2) == 1 / 16
    assert config.describe(own)["client"]["schedule"] == {"name": "tests.test_schedules:halved", "base": 0.25}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"client": {"schedule": {"name": "invers"}}}, r"client\.schedule\.name: unknown name.*Did you mean 'inverse'"),
        ({"client": {"schedule": {"name": "step"}}}, r"client\.schedule\.every: missing"),
        ({"client": {"schedule": {"name": "inverse", "offset": 0}}}, r"schedule\.offset: 0 is not a number > 0"),
        ({"algorithm": {"name": "mifa", "schedule": "inverse"}}, r"algorithm\.schedule: this key is now called"),
    ],
)
def test_wrong_schedules_get_a_clear_message(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ob.ConfigError, match=message):
        config.parse(table)


def test_a_function_must_return_a_number() -> None:
    with pytest.raises(ob.ConfigError, match=r"schedule: the function returned None for t = 0; a number ≥ 0"):
        api.execute(experiments.experiment(client=ob.SGD(schedule=lambda t: None), rounds=1))  # type: ignore[arg-type]
    with pytest.raises(ob.ConfigError, match="returned nan"):
        ob.SGD(schedule=lambda t: math.nan).schedule.factor(0)  # type: ignore[arg-type]


def test_every_schedule_has_a_name() -> None:
    assert list(SCHEDULES) == ["constant", "inverse", "step", "cosine", "warm-up"]
