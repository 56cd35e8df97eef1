"""Properties of the server loop under random environments."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import Quadratics, job
from tests.support.loops import CLIENTS, Bulks, build, schedulers, worlds

from offbeat.algorithms import CA2FL, Algorithm, FedAvg, FedBuff
from offbeat.algorithms.workload import Workload
from offbeat.environment import (
    Bernoulli,
    Constant,
    Environment,
    LogNormal,
    Speeds,
)
from offbeat.scheduling import (
    Anarchic,
    Available,
    Continuous,
    PerArrival,
    Rounds,
    Scheduler,
)
from offbeat.server.events import Arrival, Lost, Tick
from offbeat.server.loop import Loop
from offbeat.simulation.transport import SimulatedTransport


@given(worlds, schedulers(), st.integers(0, 1000))
@settings(max_examples=120, deadline=None)
def test_every_job_ends_exactly_once(environment: Environment, scheduler: Scheduler, seed: int) -> None:
    loop = build(environment, scheduler, seed)
    transport = loop.transport
    assert isinstance(transport, SimulatedTransport)
    loop.start()
    arrived = lost = 0
    ended: set[int] = set()
    before = 0.0
    for _ in range(150):
        outcome = loop.turn()
        assert outcome.now >= before, "the clock never goes back"
        before = outcome.now
        if isinstance(outcome.event, (Arrival, Lost)):
            arrived += isinstance(outcome.event, Arrival)
            lost += isinstance(outcome.event, Lost)
            assert outcome.event.job.id not in ended, "a trip ends once"
            ended.add(outcome.event.job.id)
            assert outcome.now - outcome.event.sent <= 4.0 + 1e-9, "nothing outlasts the time-out"
        flying = [job.client for job in transport.flying]
        assert loop.jobs == arrived + lost + len(flying), "sent = arrived + lost + in flight"
        assert len(set(flying)) == len(flying), "at most one job a client"
        assert len(flying) == loop.pool.busy <= CLIENTS
        if not isinstance(scheduler, (Rounds, Available, Anarchic)):
            assert len(flying) <= scheduler.places


@given(worlds, schedulers(), st.integers(0, 1000), st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_a_state_saved_between_two_turns_continues_identically(
    environment: Environment, scheduler: Scheduler, seed: int, cut: int
) -> None:
    algorithm = CA2FL
    whole = build(environment, copy.deepcopy(scheduler), seed, algorithm())
    first = build(environment, copy.deepcopy(scheduler), seed, algorithm())
    second = build(environment, copy.deepcopy(scheduler), seed, algorithm())
    whole.start()
    first.start()
    for _ in range(cut):
        whole.turn()
        first.turn()
    file = io.BytesIO()
    torch.save([first.state_dict(), first.transport.state_dict()], file)  # type: ignore[attr-defined]
    file.seek(0)
    loop_state, transport_state = torch.load(file, weights_only=True)
    second.load_state_dict(loop_state)
    second.transport.load_state_dict(transport_state)  # type: ignore[attr-defined]
    for name in ("now", "next_at", "bytes_down", "sequence"):
        assert getattr(second.transport, name) == getattr(first.transport, name)
    for _ in range(60):
        one, other = whole.turn(), second.turn()
        assert (one.now, one.staleness, one.stepped, type(one.event)) == (
            other.now, other.staleness, other.stepped, type(other.event),
        )  # fmt: skip
    assert torch.equal(whole.algorithm.x, second.algorithm.x)


@given(schedulers(), st.integers(0, 100), st.sampled_from([1, 3, 64]))
@settings(max_examples=40, deadline=None)
def test_the_number_of_jobs_trained_at_once_does_not_matter(scheduler: Scheduler, seed: int, bulk: int) -> None:
    one = build(Environment(), copy.deepcopy(scheduler), seed)
    other = build(Environment(), copy.deepcopy(scheduler), seed, bulk=bulk)
    one.start()
    other.start()
    for _ in range(80):
        one.turn()
        other.turn()
    assert torch.equal(one.algorithm.x, other.algorithm.x)


@given(worlds, schedulers(), st.integers(0, 1000), st.sampled_from([1, 3, 64]), st.booleans())
@settings(max_examples=120, deadline=None)
def test_jobs_can_be_trained_outside_of_the_transport(
    environment: Environment, scheduler: Scheduler, seed: int, bulk: int, saved: bool
) -> None:
    """wanted() and deliver() from outside give the run and the bulks of a transport that trains itself."""
    own, idle, outside = Bulks(bulk), Bulks(bulk), Bulks(bulk)
    one, other = (build(environment, copy.deepcopy(scheduler), seed, trainer=trainer) for trainer in (own, idle))
    transport = other.transport
    assert isinstance(transport, SimulatedTransport)
    one.start()
    other.start()
    for _ in range(80):
        while jobs := transport.wanted():
            assert [job.id for job in transport.wanted()] == [job.id for job in jobs], "asking changes nothing"
            if saved:  # neither does a checkpoint between asking and delivering
                transport.load_state_dict(transport.state_dict())
                jobs = transport.wanted()
            transport.deliver(outside.train(jobs))
        mine, theirs = one.turn(), other.turn()
        assert (mine.now, mine.staleness, mine.stepped, type(mine.event)) == (
            theirs.now, theirs.staleness, theirs.stepped, type(theirs.event),
        )  # fmt: skip
    assert torch.equal(one.algorithm.x, other.algorithm.x)
    assert outside.bulks == own.bulks
    assert not idle.bulks, "nothing is left to train"


def test_only_jobs_that_the_next_event_needs_are_wanted() -> None:
    """Three clients of different speed, and a requested tick before any of them returns."""
    environment = Environment(delay=Speeds(seconds_per_step=(0.5, 3.0, 2.0), jitter=0.0))
    trainer = Bulks(bulk=2)
    transport = SimulatedTransport(environment, trainer, seed=0)
    assert transport.wanted() == []
    jobs = [job(number, client, 0, torch.zeros(3), steps=1) for number, client in ((1, 0), (2, 1), (3, 2))]
    transport.send(jobs)
    transport.wake(0.1)
    assert transport.wanted() == [], "the next event is a tick"
    assert transport.receive() == Tick()
    assert [j.id for j in transport.wanted()] == [1, 3], "the earliest arrivals, in their order"
    transport.deliver(trainer.train(transport.wanted()))
    assert transport.wanted() == [], "the next event is trained"
    assert transport.next_at == 0.5
    assert [transport.receive().job.id for _ in range(3)] == [1, 3, 2]  # type: ignore[union-attr]
    assert trainer.bulks == [[1, 3], [2]], "what nobody has delivered is trained by the transport's own trainer"


def test_the_nth_job_of_a_client_is_the_same_under_every_algorithm() -> None:
    """Common random numbers: its seed, from which its batches follow, its loss and its delay do not depend on the
    server."""

    def trips(scheduler: Scheduler, algorithm: Algorithm) -> dict[tuple[int, int], tuple[int, str, float]]:
        loop = build(Environment(delay=LogNormal(), loss=0.2, trip_timeout=9.0), scheduler, 5, algorithm)
        loop.start()
        seen: dict[tuple[int, int], tuple[int, str, float]] = {}
        count = [0] * CLIENTS
        for _ in range(200):
            outcome = loop.turn()
            if isinstance(outcome.event, (Arrival, Lost)):
                client = outcome.event.job.client
                seconds = round(outcome.now - outcome.event.sent, 9)
                seen[client, count[client]] = outcome.event.job.seed, type(outcome.event).__name__, seconds
                count[client] += 1
        assert {how for _, how, _ in seen.values()} == {"Arrival", "Lost"}
        return seen

    one, other = trips(Rounds(concurrency=4), FedAvg()), trips(PerArrival(concurrency=7), FedBuff())
    shared = one.keys() & other.keys()
    assert len(shared) > 50
    assert all(one[trip] == other[trip] for trip in shared)


def test_drawing_is_uniform() -> None:
    loop = build(Environment(delay=Constant()), Rounds(concurrency=3), 0)
    loop.start()
    counts = [0] * CLIENTS
    for _ in range(12_000):
        event = loop.turn().event
        assert isinstance(event, Arrival)
        counts[event.job.client] += 1
    # 12,000 draws, 1,000 expected each; six standard deviations of a binomial are about 182.
    assert all(abs(count - 1000) < 182 for count in counts)


def test_few_available_of_many_clients_are_found_with_few_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 clients, one in twenty available, 1,000 places: the server scans a slot once, not once per open place."""
    clients, queries = 10_000, 0
    span = Bernoulli.span

    def counted(self: Bernoulli, client: int, client_key: int, now: float) -> tuple[bool, float]:
        nonlocal queries
        queries += 1
        return span(self, client, client_key, now)

    monkeypatch.setattr(Bernoulli, "span", counted)
    environment = Environment(delay=Constant(value=0.1), availability=Bernoulli(probability=0.05, slot=1.0))
    algorithm = FedBuff()
    algorithm.start(torch.zeros(2), clients)
    trainer = Quadratics(torch.ones((clients, 2)), lr=0.1, steps=1)
    loop = Loop(
        algorithm=algorithm,
        scheduler=Continuous(concurrency=1000, buffer=10),
        environment=environment,
        transport=SimulatedTransport(environment, trainer, 0),
        clients=clients,
        workload=lambda _: Workload(1),
        seed=0,
    )
    loop.start()
    for _ in range(2000):
        loop.turn()
    assert loop.transport.now < 1.0, "all turns are in the first slot"
    assert clients < queries < 3 * clients
