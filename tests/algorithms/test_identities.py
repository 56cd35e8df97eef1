"""Algorithms that must agree where their rules coincide."""

from __future__ import annotations

import pytest
import torch
from tests.support import Quadratics
from torch import Tensor

from offbeat.algorithms import CA2FL, MFCA2FL, Algorithm, FedAsync, FedAvg, FedBuff
from offbeat.algorithms.staleness import Hinge, Polynomial
from offbeat.algorithms.workload import Workload
from offbeat.cache import Quantized
from offbeat.environment import Environment, HalfNormal
from offbeat.scheduling import Buffered, Continuous, PerArrival, Rounds, Scheduler
from offbeat.server.loop import Loop
from offbeat.simulation.transport import SimulatedTransport

CLIENTS = 9


def trajectory(algorithm: Algorithm, scheduler: Scheduler, steps: int = 40) -> list[Tensor]:
    trainer = Quadratics(torch.randn((CLIENTS, 6), generator=torch.Generator().manual_seed(3)), lr=0.1, steps=4)
    environment = Environment(delay=HalfNormal())
    algorithm.start(torch.zeros(6), CLIENTS, seed=2)
    loop = Loop(
        algorithm=algorithm,
        scheduler=scheduler,
        environment=environment,
        transport=SimulatedTransport(environment, trainer, 0),
        clients=CLIENTS,
        workload=lambda _: Workload(4),
        seed=0,
    )
    loop.start()
    models = []
    while algorithm.version < steps:
        if loop.turn().stepped:
            models.append(algorithm.x)
    return models


def same(one: list[Tensor], other: list[Tensor], tolerance: float = 0.0) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def test_ca2fl_with_full_participation_is_fedavg() -> None:
    """S_t = [N] ⇒ v = h + mean Δ − h."""
    same(
        trajectory(CA2FL(), Rounds(concurrency=CLIENTS)),
        trajectory(FedAvg(), Rounds(concurrency=CLIENTS)),
        tolerance=1e-6,
    )


@pytest.mark.parametrize("rule", [FedBuff, CA2FL])
def test_buffer_of_one_is_per_arrival(rule: type[Algorithm]) -> None:
    per_arrival = trajectory(rule(), PerArrival(concurrency=4))
    same(per_arrival, trajectory(rule(), Continuous(concurrency=4, buffer=1)))
    same(per_arrival, trajectory(rule(), Buffered(concurrency=4, buffer=1)))


def test_mf_ca2fl_is_ca2fl_with_a_quantized_cache() -> None:
    alias, original = MFCA2FL(bits=4), CA2FL(cache=Quantized(bits=4))
    scheduler = Buffered(concurrency=6, buffer=3)
    same(trajectory(alias, scheduler), trajectory(original, scheduler))
    assert alias.cache_bytes == original.cache_bytes > 0


def test_mf_ca2fl_approaches_ca2fl_with_more_bits() -> None:
    exact = trajectory(CA2FL(), Buffered(concurrency=6, buffer=3))[-1]
    errors = [
        float((trajectory(MFCA2FL(bits=bits), Buffered(concurrency=6, buffer=3))[-1] - exact).norm())
        for bits in (2, 4, 8)
    ]
    assert errors[0] > 3 * errors[1] > 9 * errors[2]


def test_constant_weights_change_nothing() -> None:
    plain = trajectory(FedBuff(), Buffered(concurrency=6, buffer=3))
    same(plain, trajectory(FedBuff(staleness=Polynomial(a=0.0)), Buffered(concurrency=6, buffer=3)))
    same(plain, trajectory(FedBuff(staleness=Hinge(b=1000.0)), Buffered(concurrency=6, buffer=3)))


def test_fedasync_that_replaces_the_model_is_fedavg_of_one_client() -> None:
    """α = 1 without staleness: x becomes the client's model."""
    same(
        trajectory(FedAsync(alpha=1.0), PerArrival(concurrency=1)),
        trajectory(FedAvg(), Rounds(concurrency=1)),
        tolerance=1e-6,
    )


def test_fedbuff_in_rounds_is_fedavg() -> None:
    same(trajectory(FedBuff(), Rounds(concurrency=5)), trajectory(FedAvg(), Rounds(concurrency=5)))
