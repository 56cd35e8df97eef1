"""Predictions of the theory, including biases, on quadratics f_i(x) = ½‖x − c_i‖² with a known optimum."""

from __future__ import annotations

import pytest
import torch
from tests.support import Quadratics
from torch import Tensor

from offbeat.algorithms import AFACD, AFACS, CA2FL, MIFA, Algorithm, FedAvg, FedAvgIS, FedBuff
from offbeat.algorithms.workload import Workload
from offbeat.cache import ClientSide, Dense, UpdateCache
from offbeat.environment import Bernoulli, Constant, Environment, HalfNormal
from offbeat.scheduling import Anarchic, Available, Continuous, Rounds, Scheduler
from offbeat.server.loop import Loop
from offbeat.simulation.transport import SimulatedTransport

N = 10
CENTERS = torch.arange(N, dtype=torch.float64)[:, None] - 4.5  # the optimum of the mean is 0
RARE_FIRST = tuple(0.1 + 0.09 * i for i in range(N))  # client 0 is seldom awake, client 9 nearly always


def settled(
    algorithm: Algorithm, scheduler: Scheduler, environment: Environment, steps: int = 1200, rate: float = 0.05
) -> Tensor:
    """Return the mean of x over the last three quarters of a run."""
    trainer = Quadratics(CENTERS, lr=rate, steps=1)
    algorithm.start(torch.zeros(1, dtype=torch.float64), N, participation=environment.availability.probability_of)
    loop = Loop(
        algorithm=algorithm,
        scheduler=scheduler,
        environment=environment,
        transport=SimulatedTransport(environment, trainer, 0),
        clients=N,
        workload=lambda _: Workload(1),
        seed=1,
    )
    loop.start()
    total, seen = torch.zeros(1, dtype=torch.float64), 0
    while algorithm.version < steps:
        if loop.turn().stepped and algorithm.version > steps / 4:
            total, seen = total + algorithm.x, seen + 1
    return total / seen


def sleepy() -> Environment:
    return Environment(delay=Constant(value=1.0), availability=Bernoulli(probability=RARE_FIRST, slot=1.0))


def test_fedavg_is_biased_by_availability_and_mifa_and_importance_sampling_are_not() -> None:
    biased = settled(FedAvg(), Available(), sleepy())
    expected = sum(p * c for p, c in zip(RARE_FIRST, CENTERS.flatten().tolist(), strict=True)) / sum(RARE_FIRST)
    assert biased.item() == pytest.approx(expected, abs=0.35), "the mean over the awake, roughly p-weighted"
    assert abs(settled(FedAvgIS(), Available(), sleepy(), rate=0.02).item()) < 0.25
    assert abs(settled(MIFA(), Available(), sleepy(), rate=0.02).item()) < 0.1
    assert biased.item() > 1


def test_device_sampling_is_unbiased_because_it_waits() -> None:
    assert abs(settled(FedAvg(), Rounds(concurrency=4, asleep="wait"), sleepy(), steps=3000).item()) < 0.25
    assert settled(FedAvg(), Rounds(concurrency=4), sleepy(), steps=3000).item() > 1


def test_anarchic_arrivals_bias_afa_cd_and_not_afa_cs() -> None:
    """Yang et al., theorems 2 and 4: without a cache there is a bias that no rate removes; with one there is none."""
    shares = (0.19, 0.19, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01)
    environment = Environment(delay=Constant(value=0.01))

    def anarchic() -> Anarchic:
        return Anarchic(buffer=3, idle=1.0, probabilities=shares)

    expected = sum(s * c for s, c in zip(shares, CENTERS.flatten().tolist(), strict=True)) / sum(shares)
    assert settled(AFACD(), anarchic(), environment).item() == pytest.approx(expected, abs=0.2)
    assert abs(expected) > 1
    assert abs(settled(AFACS(), anarchic(), environment, steps=4000, rate=0.01).item()) < 0.25


def test_fedbuffs_error_grows_with_delay_times_heterogeneity_and_ca2fls_does_not() -> None:
    """Wang et al., theorems B.5 and B.7, on the spread of the last iterates."""

    def error(rule: Algorithm, scale: float, concurrency: int) -> float:
        trainer = Quadratics(CENTERS * scale, lr=0.2, steps=1)
        environment = Environment(delay=HalfNormal())
        rule.start(torch.zeros(1, dtype=torch.float64), N)
        loop = Loop(
            algorithm=rule,
            scheduler=Continuous(concurrency=concurrency, buffer=2),
            environment=environment,
            transport=SimulatedTransport(environment, trainer, 0),
            clients=N,
            workload=lambda _: Workload(1),
            seed=1,
        )
        loop.start()
        squares, seen = 0.0, 0
        while rule.version < 3000:
            if loop.turn().stepped and rule.version > 500:
                squares, seen = squares + rule.x.item() ** 2, seen + 1
        return float((squares / seen) ** 0.5)

    quiet, loud = error(FedBuff(), 1.0, 4), error(FedBuff(), 10.0, 4)
    assert loud == pytest.approx(10 * quiet, rel=0.01), "linear in the heterogeneity"
    assert error(FedBuff(), 10.0, 10) > 1.2 * error(FedBuff(), 10.0, 2), "and more so with longer delays"
    assert error(CA2FL(), 10.0, 4) < 0.4 * loud


@pytest.mark.parametrize("cache", [Dense(), ClientSide()], ids=["server", "clients"])
def test_mifas_two_forms(cache: UpdateCache) -> None:
    """A cache at the server and one at the clients give the same trajectory, bit for bit."""
    reference = settled(MIFA(), Available(), sleepy(), steps=200)
    assert torch.equal(settled(MIFA(cache=cache), Available(), sleepy(), steps=200), reference)


def test_mifa_with_everybody_awake_is_fedavg() -> None:
    everybody = Environment(delay=Constant(value=1.0))
    one = settled(MIFA(), Available(), everybody, steps=50)
    torch.testing.assert_close(one, settled(FedAvg(), Available(), everybody, steps=50), rtol=0, atol=1e-12)


def test_afa_cs_takes_mifas_direction() -> None:
    mifa = settled(MIFA(wait_for_all=False), Available(), sleepy(), steps=100)
    assert torch.equal(settled(AFACS(), Available(), sleepy(), steps=100), mifa)
