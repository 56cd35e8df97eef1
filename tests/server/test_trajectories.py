"""Pinned trajectories: optimizations must not change which clients are drawn, when updates arrive, or x."""

from __future__ import annotations

import hashlib

import pytest
import torch
from tests.support import Quadratics

from offbeat.algorithms import CA2FL, Algorithm, FedAsync, FedAvg, FedBuff
from offbeat.algorithms.workload import Workload
from offbeat.environment import Bernoulli, Constant, Environment, Exponential, LogNormal, Speeds, UniformSteps
from offbeat.random import stream
from offbeat.scheduling import Anarchic, Buffered, Continuous, PerArrival, Periodic, Rounds, Scheduler
from offbeat.server.events import Tick
from offbeat.server.loop import Loop
from offbeat.simulation.transport import SimulatedTransport

CLIENTS = 40


def trajectory(algorithm: Algorithm, scheduler: Scheduler, environment: Environment, turns: int = 2000) -> str:
    """Return a digest of all events, to a microsecond, and of x, as far as processors agree on it."""
    centres = torch.from_numpy(stream("centres").standard_normal((CLIENTS, 6), dtype="float32"))
    transport = SimulatedTransport(environment, Quadratics(centres, lr=0.125, steps=1), seed=3)
    loop = Loop(
        algorithm=algorithm,
        scheduler=scheduler,
        environment=environment,
        transport=transport,
        clients=CLIENTS,
        workload=lambda _: Workload(3),
        seed=3,
    )
    algorithm.start(torch.zeros(6), CLIENTS, seed=3)
    loop.start()
    digest = hashlib.sha256()
    for _ in range(turns):
        out = loop.turn()
        job = None if isinstance(out.event, Tick) else out.event.job
        what = (job.id, job.client, job.version, job.steps, job.seed) if job is not None else out.event
        line = (type(out.event).__name__, round(out.now, 6), what, out.staleness, out.aggregated, out.stepped)
        digest.update(repr(line).encode())
    digest.update(repr([round(value, 4) for value in algorithm.x.tolist()]).encode())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize(
    ("algorithm", "scheduler", "environment", "expected"),
    [
        (FedBuff(), Buffered(concurrency=12, buffer=5), Environment(), "44d8453be6151eb1"),
        (
            CA2FL(),
            Buffered(concurrency=9, buffer=3),
            Environment(delay=LogNormal(), loss=0.1, trip_timeout=4.0),
            "1f78476e830e83fd",
        ),
        (FedAsync(), PerArrival(concurrency=7), Environment(delay=Exponential(spread=(0.5, 4.0))), "b52a2bc62ae82654"),
        (FedBuff(), Continuous(concurrency=20, buffer=4), Environment(delay=Constant()), "6cd97bcd71cc1e29"),
        (
            FedAvg(),
            Rounds(concurrency=8, deadline=3.0, last_models=3),
            Environment(delay=Speeds(stragglers=0.2)),
            "321e4fba1db2f500",
        ),
        (FedBuff(), Periodic(concurrency=10, period=0.7), Environment(local_work=UniformSteps()), "78367ccc2dad635e"),
        (
            FedBuff(),
            Anarchic(buffer=4, idle=5.0),
            Environment(availability=Bernoulli(probability=0.4)),
            "2700a2ba45c6ad33",
        ),
        (
            CA2FL(),
            Buffered(concurrency=30, buffer=10),
            Environment(availability=Bernoulli(probability=0.5), on_leave="lost", trip_timeout=9.0),
            "e708a68fd05744af",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, (Algorithm, Scheduler)) else "",
)
def test_trajectories_are_unchanged(
    algorithm: Algorithm, scheduler: Scheduler, environment: Environment, expected: str
) -> None:
    assert trajectory(algorithm, scheduler, environment) == expected
