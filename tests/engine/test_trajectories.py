"""What the engine does is pinned: whoever makes it faster must not change who is drawn, when what arrives, or x."""

from __future__ import annotations

import hashlib

import pytest
import torch
from tests.support import Quadratics

from offbeat.algorithms import CA2FL, Algorithm, FedAsync, FedAvg, FedBuff
from offbeat.engine import (
    Anarchic,
    Buffered,
    Dispatch,
    KeepBusy,
    Loop,
    PerArrival,
    Periodic,
    Rounds,
    Simulated,
    Terms,
    Tick,
)
from offbeat.seeds import stream
from offbeat.world import Bernoulli, Constant, Exponential, LogNormal, Speeds, UniformSteps, World

CLIENTS = 40


def trajectory(algorithm: Algorithm, dispatch: Dispatch, world: World, turns: int = 2000) -> str:
    """A digest of all events, to a microsecond, and of x, as far as processors agree on it."""
    centres = torch.from_numpy(stream("centres").standard_normal((CLIENTS, 6), dtype="float32"))
    transport = Simulated(world, Quadratics(centres, lr=0.125, steps=1), seed=3)
    loop = Loop(algorithm, dispatch, world, transport, CLIENTS, lambda _: Terms(3), seed=3)
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
    ("algorithm", "dispatch", "world", "expected"),
    [
        (FedBuff(), Buffered(concurrency=12, buffer=5), World(), "44d8453be6151eb1"),
        (
            CA2FL(),
            Buffered(concurrency=9, buffer=3),
            World(delay=LogNormal(), loss=0.1, trip_timeout=4.0),
            "1f78476e830e83fd",
        ),
        (FedAsync(), PerArrival(concurrency=7), World(delay=Exponential(spread=(0.5, 4.0))), "b52a2bc62ae82654"),
        (FedBuff(), KeepBusy(concurrency=20, buffer=4), World(delay=Constant()), "6cd97bcd71cc1e29"),
        (
            FedAvg(),
            Rounds(concurrency=8, deadline=3.0, last_models=3),
            World(delay=Speeds(stragglers=0.2)),
            "72b69b0a28b09786",
        ),
        (FedBuff(), Periodic(concurrency=10, period=0.7), World(effort=UniformSteps()), "78367ccc2dad635e"),
        (FedBuff(), Anarchic(buffer=4, idle=5.0), World(availability=Bernoulli(probability=0.4)), "2700a2ba45c6ad33"),
        (
            CA2FL(),
            Buffered(concurrency=30, buffer=10),
            World(availability=Bernoulli(probability=0.5), on_leave="lost", trip_timeout=9.0),
            "e708a68fd05744af",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, (Algorithm, Dispatch)) else "",
)
def test_a_trajectory_is_what_it_was(algorithm: Algorithm, dispatch: Dispatch, world: World, expected: str) -> None:
    assert trajectory(algorithm, dispatch, world) == expected
