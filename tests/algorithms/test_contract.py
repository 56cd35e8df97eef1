"""The contract of every algorithm."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from tests.support import Arrivals, Quadratics, job, update
from torch import Tensor

from offbeat.algorithms import AGGREGATORS, ALGORITHMS, CA2FL, Algorithm, FedBuff
from offbeat.algorithms.workload import Workload
from offbeat.environment import Constant, Environment, HalfNormal
from offbeat.errors import ConfigError
from offbeat.scheduling import SCHEDULERS, PerArrival
from offbeat.server.events import Arrival
from offbeat.server.loop import Loop
from offbeat.simulation.transport import SimulatedTransport
from offbeat.stateful import Stateful

RULES: dict[str, Callable[..., Algorithm]] = ALGORITHMS | {
    f"fedbuff, {name}": lambda kind=kind, **more: FedBuff(aggregator=kind(), **more)
    for name, kind in AGGREGATORS.items()
}
EVERY = pytest.mark.parametrize("name", RULES)


def feed(algorithm: Algorithm, history: Arrivals, first: int, last: int, steps: bool = True) -> list[Tensor]:
    """Feed a part of a history to an algorithm and return its models."""
    models = [algorithm.x]
    for n in range(first, last):
        j = job(n, history.who[n], algorithm.version, algorithm.x)
        algorithm.receive(j, update(j, torch.from_numpy(history.deltas[n]).to(algorithm.x.dtype), history.examples[n]))
        if steps and history.steps_after[n]:
            algorithm.step()
            models.append(algorithm.x)
    return models


def started(name: str, history: Arrivals, dtype: torch.dtype = torch.float32) -> Algorithm:
    algorithm = RULES[name]()
    begin(algorithm, torch.from_numpy(history.x0.copy()).to(dtype), history)
    return algorithm


def begin(algorithm: Algorithm, x: Tensor, history: Arrivals) -> None:
    algorithm.start(x, history.clients, participation=lambda _: 0.5, updates=history.steps_after.index(True) + 1)


def history_for(name: str, seed: int = 0) -> Arrivals:
    """Return a history with one update per step for FedAsync, which requires it, and three for the others."""
    return Arrivals(seed, buffer=1 if name == "fedasync" else 3)


def differing(one: object, other: object, name: str = "") -> list[str]:
    """Return the names of the attributes in which two rules differ, including those of the objects that they hold.

    Private attributes are scratch space unless they are part of the saved state, and callables have no state.
    """
    if isinstance(one, Stateful):
        saved = {*one.base_state_names, *one.state_names}
        names = [attribute for attribute in vars(one) if attribute in saved or not attribute.startswith("_")]
        pairs = [(f"{name}.{attribute}", getattr(one, attribute), getattr(other, attribute)) for attribute in names]
    elif isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        pairs = [(f"{name}[{key}]", value, other[key]) for key, value in one.items()]
    elif isinstance(one, (list, tuple, deque)) and isinstance(other, (list, tuple, deque)) and len(one) == len(other):
        pairs = [(f"{name}[{place}]", *pair) for place, pair in enumerate(zip(one, other, strict=True))]
    elif isinstance(one, Tensor) and isinstance(other, Tensor):
        return [] if torch.equal(one, other) else [name]
    else:
        return [] if callable(one) or one == other else [name]
    return [found for part, mine, theirs in pairs for found in differing(mine, theirs, part)]


@EVERY
def test_models_in_flight_are_never_changed(name: str) -> None:
    history = history_for(name)
    algorithm = started(name, history)
    seen: list[tuple[Tensor, Tensor]] = []
    for n in range(0, 48, 3):
        seen.append((algorithm.x, algorithm.x.clone()))
        feed(algorithm, history, n, n + 3)
    assert all(torch.equal(model, copy_) for model, copy_ in seen)
    distinct = {copy_.numpy().tobytes() for _, copy_ in seen}
    assert len({id(model) for model, _ in seen}) >= len(distinct) > 5, "a version that differs is a new tensor"


@EVERY
def test_updates_are_never_changed(name: str) -> None:
    """Compare the very tensors that the rule received, not the history that they were made from."""
    history = history_for(name)
    algorithm = started(name, history)
    received: list[tuple[Tensor, Tensor]] = []
    for n in range(50):
        j = job(n, history.who[n], algorithm.version, algorithm.x)
        delta = torch.from_numpy(history.deltas[n].copy()).to(algorithm.x.dtype)
        received.append((delta, delta.clone()))
        algorithm.receive(j, update(j, delta, history.examples[n]))
        if history.steps_after[n]:
            algorithm.step()
    assert len(received) == 50
    assert all(torch.equal(delta, before) for delta, before in received)


@EVERY
def test_version_counts_steps_and_a_step_without_updates_keeps_x(name: str) -> None:
    history = history_for(name)
    algorithm = started(name, history)
    algorithm.step()
    assert algorithm.version == 1
    assert torch.equal(algorithm.x, torch.from_numpy(history.x0).float())
    feed(algorithm, history, 0, 50)
    assert algorithm.version == 1 + sum(history.steps_after)


@EVERY
@pytest.mark.parametrize("cut", [1, 2, 7, 25])
def test_a_saved_state_continues_identically_also_in_the_middle_of_a_buffer(name: str, cut: int) -> None:
    history = history_for(name)
    whole, first, second = (started(name, history) for _ in range(3))
    feed(whole, history, 0, 50)
    feed(first, history, 0, cut)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert differing(second, first) == []
    feed(second, history, cut, 50)
    assert torch.equal(second.x, whole.x)
    assert differing(second, whole) == []


@EVERY
def test_a_second_start_forgets_the_first(name: str) -> None:
    history = history_for(name)
    algorithm = started(name, history)
    feed(algorithm, history, 0, 49, steps=name == "fedasync")
    begin(algorithm, torch.from_numpy(history.x0).float(), history)
    feed(algorithm, history, 0, 50)
    fresh = started(name, history)
    feed(fresh, history, 0, 50)
    assert torch.equal(algorithm.x, fresh.x)


@EVERY
def test_dtype_is_kept(name: str) -> None:
    history = history_for(name)
    algorithm = started(name, history, torch.float64)
    assert all(model.dtype == torch.float64 for model in feed(algorithm, history, 0, 20))


@EVERY
def test_rate_must_be_positive(name: str) -> None:
    with pytest.raises(ConfigError, match="eta: 0 is not a number > 0"):
        RULES[name](eta=0)


def simulate(
    algorithm: Algorithm,
    trainer: Quadratics,
    steps: int,
    environment: Environment,
    concurrency: int = 8,
    buffer: int = 4,
) -> Tensor:
    """Run on quadratics under the algorithm's default scheduler and return the mean of x over the last half."""
    kind: Any = SCHEDULERS[algorithm.schedulers[0]]
    names = {field.name for field in fields(kind)}
    scheduler = kind(**{k: v for k, v in (("concurrency", concurrency), ("buffer", buffer)) if k in names})
    clients = len(trainer.centers)
    algorithm.start(
        torch.zeros(trainer.centers.shape[1]), clients, participation=environment.availability.probability_of
    )
    loop = Loop(
        algorithm=algorithm,
        scheduler=scheduler,
        environment=environment,
        transport=SimulatedTransport(environment, trainer, 0),
        clients=clients,
        workload=lambda _: Workload(1),
        seed=0,
    )
    loop.start()
    total, seen = torch.zeros_like(algorithm.x), 0
    while algorithm.version < steps:
        if loop.turn().stepped and algorithm.version > steps / 2:
            total, seen = total + algorithm.x, seen + 1
    return total / seen


@pytest.mark.parametrize(
    "name", [name for name in ALGORITHMS if name != "feddyn"]
)  # needs its own clients: see its box
def test_converges_to_the_optimum_of_a_heterogeneous_quadratic(name: str) -> None:
    """Equal delays, uniform participation: every rule has the optimum of the mean as its fixed point."""
    trainer = Quadratics(torch.randn((16, 5), generator=torch.Generator().manual_seed(1)) * 3, lr=0.05, steps=2)
    options: dict[str, Any] = {"fedasync": {"alpha": 0.1}, "mifa": {"eta": 0.5}}.get(name, {})
    mean = simulate(ALGORITHMS[name](**options), trainer, 600, Environment(delay=Constant()))
    assert (mean - trainer.optimum).norm() < 0.06 * trainer.centers.norm(dim=1).mean()


def test_calibration_removes_the_noise_of_random_participation() -> None:
    """The theory of CA²FL: FedBuff's distance to the optimum keeps a term that grows with the heterogeneity and the
    delay; with cached updates it vanishes. Measured on the last iterate, not on its mean."""

    def distance(name: str, scale: float) -> float:
        centers = torch.randn((16, 5), generator=torch.Generator().manual_seed(1)) * scale
        trainer = Quadratics(centers, lr=0.2, steps=3)
        algorithm = ALGORITHMS[name]()
        simulate(algorithm, trainer, 400, Environment(delay=HalfNormal()))
        return float((algorithm.x - trainer.optimum).norm())

    low, high = distance("fedbuff", 1.0), distance("fedbuff", 10.0)
    assert high > 5 * low, "FedBuff's error grows with the heterogeneity"
    assert distance("ca2fl", 10.0) < 0.01 * high


def test_arrivals_carry_the_job_that_they_answer() -> None:
    """FedAsync needs the model that the client pulled, also after later steps."""
    trainer = Quadratics(torch.randn((6, 3)), lr=0.1, steps=1)
    environment = Environment(delay=HalfNormal())
    algorithm = CA2FL()
    algorithm.start(torch.zeros(3), 6)
    loop = Loop(
        algorithm=algorithm,
        scheduler=PerArrival(concurrency=4),
        environment=environment,
        transport=SimulatedTransport(environment, trainer, 0),
        clients=6,
        workload=lambda _: Workload(1),
        seed=0,
    )
    loop.start()
    models = [algorithm.x]
    for _ in range(60):
        outcome = loop.turn()
        assert isinstance(outcome.event, Arrival)
        assert outcome.event.job.x is models[outcome.event.job.version]
        assert outcome.staleness == len(models) - 1 - outcome.event.job.version
        models.append(algorithm.x)
    assert len({id(model) for model in models}) == len(models), "every version is a tensor of its own"
