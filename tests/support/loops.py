"""Server loops on random environments, for property tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from tests.support import Quadratics

from offbeat.algorithms import Algorithm, FedBuff
from offbeat.algorithms.workload import Workload
from offbeat.environment import (
    Always,
    Availability,
    Bernoulli,
    Constant,
    Delay,
    Environment,
    Exponential,
    HalfNormal,
    LogNormal,
    Uniform,
)
from offbeat.messages import Job, Update
from offbeat.scheduling import (
    Anarchic,
    Available,
    Buffered,
    Continuous,
    PerArrival,
    Periodic,
    Rounds,
    Scheduler,
)
from offbeat.server.loop import Loop
from offbeat.simulation.transport import SimulatedTransport, Trainer

CLIENTS = 12


delays: st.SearchStrategy[Delay] = st.sampled_from(
    [Constant(), Uniform(low=0.0, high=3.0), Exponential(spread=(0.1, 5.0)), HalfNormal(), LogNormal(sigma=2.0)]
)


availabilities: st.SearchStrategy[Availability] = st.sampled_from([Always(), Bernoulli(probability=0.3, slot=0.7)])


worlds = st.builds(
    Environment,
    on_leave=st.sampled_from(["finish", "lost", "late"]),
    delay=delays,
    availability=availabilities,
    loss=st.sampled_from([0.0, 0.1, 0.6]),
    trip_timeout=st.just(4.0),
)


@st.composite
def schedulers(draw: st.DrawFn) -> Scheduler:
    concurrency = draw(st.integers(1, CLIENTS))
    kind = draw(
        st.sampled_from(
            [
                "rounds",
                "deadline",
                "waiting",
                "old",
                "available",
                "buffered",
                "continuous",
                "per-arrival",
                "periodic",
                "anarchic",
            ]
        )
    )
    buffer = draw(st.integers(1, concurrency))
    return {
        "rounds": Rounds(concurrency=concurrency),
        "deadline": Rounds(concurrency=concurrency, deadline=1.5),
        "buffered": Buffered(concurrency=concurrency, buffer=buffer),
        "continuous": Continuous(concurrency=concurrency, buffer=buffer + 3),
        "waiting": Rounds(concurrency=concurrency, asleep="wait"),
        "old": Rounds(concurrency=concurrency, last_models=5, probabilities=tuple(range(1, CLIENTS + 1))),
        "available": Available(),
        "per-arrival": PerArrival(concurrency=concurrency),
        "periodic": Periodic(concurrency=concurrency, period=0.7),
        "anarchic": Anarchic(buffer=buffer, idle=0.5),
    }[kind]


def build(
    environment: Environment,
    scheduler: Scheduler,
    seed: int,
    algorithm: Algorithm | None = None,
    bulk: int = 64,
    trainer: Trainer | None = None,
) -> Loop:
    rule = algorithm or FedBuff()
    rule.start(torch.zeros(3), CLIENTS)
    trainer = trainer or Bulks(bulk)
    return Loop(
        algorithm=rule,
        scheduler=scheduler,
        environment=environment,
        transport=SimulatedTransport(environment, trainer, seed),
        clients=CLIENTS,
        workload=lambda _: Workload(2),
        seed=seed,
    )


class Bulks(Quadratics):
    """Records which jobs were trained together."""

    def __init__(self, bulk: int) -> None:
        super().__init__(torch.randn((CLIENTS, 3), generator=torch.Generator().manual_seed(1)), lr=0.1, steps=2)
        self.bulk = bulk
        self.bulks: list[list[int]] = []

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        self.bulks.append([job.id for job in jobs])
        return super().train(jobs)
