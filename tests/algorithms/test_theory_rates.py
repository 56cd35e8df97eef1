"""Errors in the order that the papers' rates predict, in the staleness τ and in N, K, M, ρ, under their schedulers.

Clients have f_i(x) = ½a_i(x − c_i)², and their stochastic gradients have noise of variance σ². The error is the root
mean square distance of x from the optimum, over the later versions of a run and over independent coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.support import update
from torch import Tensor, nn

import offbeat as ob
from offbeat.algorithms import AFACS, AFGA, CA2FL, MIFA, Algorithm, FedAvg, FedBuff
from offbeat.algorithms.optimizers import Plain
from offbeat.algorithms.topology import Complete, RandomRegular, Ring, Topology
from offbeat.algorithms.workload import Workload
from offbeat.environment import Bernoulli, Constant, Environment, HalfNormal, Uniform
from offbeat.messages import Job, Update
from offbeat.scheduling import Anarchic, Available, Continuous, Rounds, Scheduler
from offbeat.server.loop import Loop
from offbeat.simulation.transport import SimulatedTransport

COORDINATES = 400  # independent repetitions in one run
SYNCHRONOUS = Environment(delay=Constant(value=1.0))


class NoisyQuadratics:
    """Clients that take K steps of SGD on f_i(x) = ½a_i(x − c_i)².

    Args:
        centers: One c_i per client, the same in all coordinates.
        lr: Local learning rate.
        steps: Local steps K.
        noise: Standard deviation σ of a stochastic gradient.
        curvatures: One a_i per client.
    """

    def __init__(
        self, centers: Tensor, lr: float = 0.05, steps: int = 1, noise: float = 0.0, curvatures: Tensor | None = None
    ) -> None:
        self.centers, self.lr, self.steps, self.noise = centers, lr, steps, noise
        self.curvatures = torch.ones_like(centers) if curvatures is None else curvatures
        self.bulk = 64

    def upload_bytes(self, job: Job) -> int:
        return 4

    def download_bytes(self, job: Job) -> int:
        return 4

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        return [update(job, self._trained(job) - job.x) for job in jobs]

    def _trained(self, job: Job) -> Tensor:
        generator, y = torch.Generator().manual_seed(job.seed % 2**63), job.x
        for _ in range(self.steps):
            g = self.curvatures[job.client] * (y - self.centers[job.client])
            if self.noise:
                g = g + self.noise * torch.randn(len(y), dtype=y.dtype, generator=generator)
            y = y - self.lr * g
        return y


def errors(
    rule: Algorithm,
    scheduler: Scheduler,
    trainer: NoisyQuadratics,
    environment: Environment,
    versions: int,
    start: float = 0.0,
) -> list[float]:
    """Return the distance of x from the optimum at every version, as the root mean square of the coordinates."""
    clients = len(trainer.centers)
    optimum = (trainer.curvatures * trainer.centers).sum() / trainer.curvatures.sum()
    rule.start(torch.full((COORDINATES,), start, dtype=torch.float64), clients)
    loop = Loop(
        algorithm=rule, scheduler=scheduler, environment=environment,
        transport=SimulatedTransport(environment, trainer, 0), clients=clients,
        workload=lambda _: Workload(trainer.steps), seed=1,
    )  # fmt: skip
    loop.start()
    found = []
    while rule.version < versions:
        if loop.turn().stepped:
            found.append(float((rule.x - optimum).square().mean().sqrt()))
    return found


def floor(values: Sequence[float]) -> float:
    """Return the root mean square of the second half, in which the start is forgotten."""
    return float(np.sqrt(np.mean(np.square(values[len(values) // 2 :]))))


def zeros(clients: int) -> Tensor:
    return torch.zeros(clients, dtype=torch.float64)


def assert_ordered(values: Sequence[float], by: float = 1.0) -> None:
    """Check that each value is larger than the one before, at least by a factor."""
    assert all(later > by * earlier for earlier, later in pairwise(values)), values


@pytest.mark.parametrize("rule", [FedBuff, CA2FL])
def test_staleness_raises_the_error_at_a_fixed_rate(rule: type[Algorithm]) -> None:
    """The terms in τ² of theorems B.5 and B.7 of CA²FL: a higher concurrency for the same buffer, without data skew."""
    trainer = NoisyQuadratics(zeros(20), lr=0.3, noise=1.0)
    found = [
        floor(errors(rule(), Continuous(concurrency=m_c, buffer=2), trainer, Environment(delay=HalfNormal()), 400))
        for m_c in (2, 8, 16)
    ]
    assert_ordered(found, by=1.05)


@pytest.mark.parametrize("rule", [FedBuff, CA2FL])
def test_a_larger_buffer_lowers_the_error(rule: type[Algorithm]) -> None:
    """The error's main term is 1/√(TKM): quadrupling M halves the distance at equal staleness."""
    trainer = NoisyQuadratics(zeros(32), lr=0.05, noise=1.0)
    found = [floor(errors(rule(), Rounds(concurrency=m), trainer, SYNCHRONOUS, 400)) for m in (16, 4, 1)]
    for many, few in pairwise(found):
        assert few == pytest.approx(2 * many, rel=0.15)


def test_heterogeneity_raises_the_error_of_fedbuff_and_not_that_of_ca2fl() -> None:
    """Remark 4.3 of CA²FL: the joint term of staleness and heterogeneity is gone; what remains is that of the noise."""

    def found(rule: type[Algorithm]) -> list[float]:
        scheduler, environment = Continuous(concurrency=8, buffer=2), Environment(delay=Uniform(low=0.5, high=1.5))
        centers = torch.linspace(-1, 1, 20, dtype=torch.float64)
        trainers = [NoisyQuadratics(scale * centers, noise=0.3) for scale in (0.5, 2.0, 8.0)]
        return [floor(errors(rule(), scheduler, trainer, environment, 800, start=1.0)) for trainer in trainers]

    fedbuff, ca2fl = found(FedBuff), found(CA2FL)
    assert_ordered(fedbuff, by=1.5)
    assert ca2fl == pytest.approx([ca2fl[0]] * 3, rel=0.01)
    assert ca2fl[0] < 1.3 * fedbuff[0], "the floor of the noise"


def test_more_local_steps_converge_in_fewer_versions_up_to_drift() -> None:
    """K speeds up the start, and the bias of drifting clients, here of different curvature, grows with (K − 1)."""
    curvatures = torch.tensor([0.2, 1.0, 2.0, 5.0], dtype=torch.float64)
    centers = torch.tensor([3.0, -1.0, 2.0, -2.0], dtype=torch.float64)
    runs = [
        errors(
            FedAvg(), Rounds(concurrency=4), NoisyQuadratics(centers, 0.02, k, curvatures=curvatures), SYNCHRONOUS, 600,
            start=30.0,
        )
        for k in (1, 4, 16)
    ]  # fmt: skip
    assert_ordered([run[9] for run in reversed(runs)], by=1.2)
    assert runs[0][-1] < 1e-6, "a single step does not drift"
    assert_ordered([run[-1] for run in runs[1:]], by=2)


def test_mifas_error_falls_with_the_number_of_devices() -> None:
    """Theorem 5.1 of MIFA: (τ̄ + 1)σ²/(NKT); four times as many devices halve the distance."""
    environment = Environment(delay=Constant(value=1.0), availability=Bernoulli(probability=0.5, slot=1.0))
    found = [
        floor(errors(MIFA(), Available(), NoisyQuadratics(zeros(n), 0.02, noise=1.0), environment, 400))
        for n in (64, 16, 4)
    ]
    for few, many in pairwise(reversed(found)):
        assert few == pytest.approx(2 * many, rel=0.15)


def test_mifas_error_grows_with_the_inactive_rounds() -> None:
    """The factor τ̄ + 1 of the same theorem; rarer devices leave the same noise in x for longer."""
    found = []
    for p in (1.0, 0.5, 0.2):
        environment = Environment(delay=Constant(value=1.0), availability=Bernoulli(probability=p, slot=1.0))
        found.append(floor(errors(MIFA(), Available(), NoisyQuadratics(zeros(10), 0.02, noise=1.0), environment, 700)))
    assert_ordered(found, by=1.2)
    # A step reuses a gradient for τ̄ + 1 = 1/p rounds, so that the variance grows by about 2/p − 1.
    assert found[1] / found[0] == pytest.approx(3**0.5, rel=0.15)
    assert found[2] / found[0] == pytest.approx(9**0.5, rel=0.15)


def test_afa_cs_error_falls_with_the_number_of_workers() -> None:
    """Theorem 4 of Anarchic FL: the main term is 1/√(MKT), if the same share of the M workers returns in each step."""
    found = [
        floor(
            errors(
                AFACS(), Anarchic(buffer=workers // 4, idle=1.0), NoisyQuadratics(zeros(workers), 0.01, noise=1.0),
                Environment(delay=Constant(value=0.01)), 800,
            )
        )
        for workers in (64, 16, 4)
    ]  # fmt: skip
    for few, many in pairwise(reversed(found)):
        assert few == pytest.approx(2 * many, rel=0.15)


class Point(nn.Module):
    """One parameter, as f_i(x) = ½‖x − c_i‖² needs it; the inputs do not matter."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(COORDINATES // 10))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.x.expand(len(inputs), -1)


def test_afgas_error_falls_with_rho() -> None:
    """Theorem 4.6 of AFGA: the terms of gossip grow with ρ, as the reporting clients differ more from the others."""
    clients, rng = 16, np.random.default_rng(0)
    centers = torch.from_numpy(rng.standard_normal((clients, COORDINATES // 10))).float()
    centers -= centers.mean(dim=0)

    def found(topology: Topology) -> tuple[float, float]:
        rule = AFGA(eta=1.0, optimizer=Plain(), topology=topology)
        result = ob.run(
            data=ob.from_arrays(torch.zeros(clients, 1), centers, torch.zeros(1, 1), torch.zeros(1, COORDINATES // 10)),
            partition=[np.array([i]) for i in range(clients)], model=Point,
            task=ob.Task(loss=lambda x, c: (x - c).square().sum(dim=1) / 2, metrics={}),
            algorithm=rule, client=ob.SGD(lr=0.1, steps=10, batch_size=1), scheduler=ob.Rounds(concurrency=2),
            rounds=60, evaluation=1,
        )  # fmt: skip
        distances = [line["loss"] for line in result.evaluations[10:]]  # ½‖x‖²; the optimum is 0
        return result.summary["rho"], float(np.mean(distances))

    rhos, distances = zip(*(found(topology) for topology in (Complete(), RandomRegular(degree=4), Ring())), strict=True)
    assert_ordered(rhos)
    assert_ordered(distances, by=1.1)
