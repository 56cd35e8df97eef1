"""The schedulers on a transport whose trips are scripted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from tests.support import Quadratics
from torch import Tensor

from offbeat.algorithms import FedBuff
from offbeat.algorithms.workload import Workload
from offbeat.environment import Bernoulli, Constant, Environment, HalfNormal
from offbeat.errors import ConfigError
from offbeat.messages import Job, Update
from offbeat.random import key
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
from offbeat.server.events import Arrival, Lost, Outcome
from offbeat.server.extensions import ServerExtension
from offbeat.server.loop import Loop
from offbeat.simulation.transport import SimulatedTransport


class Script(Environment):
    """An environment in which client i takes seconds[i], or never returns."""

    seconds: list[float | None]

    def trip(self, seed: int, job: Job, bytes_down: int, bytes_up: int, now: float) -> tuple[float, bool]:
        seconds = self.seconds[job.client]
        return (now + 100.0, False) if seconds is None else (now + seconds, True)


def scripted(*seconds: float | None) -> Environment:
    environment = Script()
    object.__setattr__(environment, "seconds", list(seconds))
    return environment


def start(
    scheduler: Scheduler, environment: Environment, clients: int, extension: ServerExtension | None = None
) -> Loop:
    algorithm = FedBuff()
    algorithm.start(torch.zeros(2), clients)
    if extension is not None:
        extension.start(algorithm.x, clients)
    trainer = Quadratics(torch.ones((clients, 2)), lr=0.1, steps=1)
    loop = Loop(
        algorithm=algorithm,
        scheduler=scheduler,
        environment=environment,
        transport=SimulatedTransport(environment, trainer, 0),
        clients=clients,
        workload=lambda _: Workload(1),
        seed=0,
        extension=extension,
    )
    loop.start()
    return loop


def turns_until(loop: Loop, version: int) -> Iterator[Outcome]:
    """Yield the outcomes of turns until a version is made; fail instead of waiting forever for it."""
    for _ in range(100 * version):
        yield loop.turn()
        if loop.algorithm.version >= version:
            return
    raise AssertionError(f"version {loop.algorithm.version} after {100 * version} turns, {version} expected")


def test_rounds_wait_for_the_slowest() -> None:
    loop = start(Rounds(concurrency=3), scripted(1.0, 2.0, 7.0), 3)
    times = []
    for outcome in turns_until(loop, 3):
        if outcome.stepped:
            times.append(outcome.now)
        assert outcome.staleness == 0
    assert times == [7.0, 14.0, 21.0]


def test_rounds_do_not_wait_for_lost_clients() -> None:
    loop = start(Rounds(concurrency=3), scripted(1.0, 2.0, None), 3)
    outcomes = [loop.turn() for _ in range(3)]
    assert [o.stepped for o in outcomes] == [False, False, True]
    assert isinstance(outcomes[-1].event, Lost)
    assert loop.transport.now == 100.0


def test_a_round_in_which_all_clients_are_lost_keeps_x_and_ends() -> None:
    loop = start(Rounds(concurrency=2), scripted(None, None), 2)
    loop.turn()
    assert loop.turn().stepped
    assert loop.algorithm.version == 1
    assert not loop.algorithm.x.any()


def test_a_deadline_ends_the_round_and_late_updates_do_not_count() -> None:
    loop = start(Rounds(concurrency=2, deadline=3.0), scripted(1.0, 7.0), 2)
    steps, late = [], []
    for outcome in turns_until(loop, 6):
        if outcome.stepped:
            steps.append(outcome.now)
        if isinstance(outcome.event, Arrival) and not outcome.aggregated:
            late.append(outcome.now)
    # After the deadline only client 0 is idle, so rounds end when it arrives. Client 1 arrives at 7 and counts in no
    # round; from then on it is drawn again.
    assert steps[:5] == [3.0, 4.0, 5.0, 6.0, 7.0]
    assert late == [7.0]


def test_buffered_refills_only_after_a_step() -> None:
    loop = start(Buffered(concurrency=4, buffer=2), scripted(*[1.0] * 8), 8)
    busy = []
    for _ in range(6):
        loop.turn()
        busy.append(loop.pool.busy)
    assert busy == [3, 4, 3, 4, 3, 4]


def test_continuous_refills_at_once() -> None:
    loop = start(Continuous(concurrency=4, buffer=2), scripted(*[1.0] * 8), 8)
    for n in range(1, 9):
        outcome = loop.turn()
        assert loop.pool.busy == 4
        assert outcome.stepped == (n % 2 == 0)


def test_per_arrival_steps_at_every_arrival() -> None:
    loop = start(PerArrival(concurrency=3), scripted(*[1.0] * 5), 5)
    assert all(loop.turn().stepped for _ in range(10))


def test_periodic_steps_by_the_clock_and_refills_only_then() -> None:
    """All clients take 1.5 s, and the server steps every 2 s."""
    loop = start(Periodic(concurrency=2, period=2.0), scripted(*[1.5] * 4), 4)
    steps, busy = [], []
    for outcome in turns_until(loop, 5):
        busy.append((outcome.now, loop.pool.busy))
        if outcome.stepped:
            steps.append(outcome.now)
    assert steps == [2.0, 4.0, 6.0, 8.0, 10.0]
    assert busy[:6] == [(1.5, 1), (1.5, 0), (2.0, 2), (3.5, 1), (3.5, 0), (4.0, 2)]


def test_a_period_includes_all_arrivals_at_its_end() -> None:
    """Six clients take exactly one period: every step has all of their updates, not one of them and then the rest."""
    loop = start(Periodic(concurrency=6, period=1.0), scripted(*[1.0] * 6), 6)
    sizes, since = [], 0
    for outcome in turns_until(loop, 5):
        since += outcome.aggregated
        if outcome.stepped:
            sizes.append(since)
            since = 0
    assert sizes == [6] * 5


def test_a_period_without_arrivals_makes_a_version_and_sends_nothing() -> None:
    loop = start(Periodic(concurrency=2, period=2.0), scripted(5.0, 5.0, 5.0), 3)
    outcomes = [loop.turn() for _ in range(5)]
    assert [(outcome.now, outcome.stepped) for outcome in outcomes] == [
        (2.0, True), (4.0, True), (5.0, False), (5.0, False), (6.0, True),
    ]  # fmt: skip
    assert loop.jobs == 4


class Stamp(ServerExtension):
    """Sends the number of steps so far, and counts on when an update arrives."""

    state_names = ("value",)

    def start(self, x: Tensor, clients: int) -> None:
        self.value = 0.0

    def extra(self) -> dict[str, Tensor]:
        return {"stamp": torch.tensor(self.value)}

    def receive(self, update: Update) -> None: ...

    def stepped(self) -> None:
        self.value += 1


def test_jobs_start_from_the_last_models_that_exist_with_the_vectors_of_that_time() -> None:
    """Each existing version is equally likely from the first rounds on."""
    clients = 600
    loop = start(Rounds(concurrency=clients, last_models=3), scripted(*[1.0] * clients), clients, Stamp())
    for version, started in enumerate([[0], [0, 1], [0, 1, 2], [1, 2, 3]]):
        sent = [(job.version, float(job.extra["stamp"])) for job in loop.transport.flying]  # type: ignore[attr-defined]
        assert all(stamp == origin for origin, stamp in sent)
        counts = Counter(origin for origin, _ in sent)
        assert sorted(counts) == started
        share = clients / len(started)  # its standard deviation is at most 12.3
        assert all(abs(count - share) < 60 for count in counts.values())
        assert loop.algorithm.version == version
        assert [loop.turn().stepped for _ in range(clients)][-1]


def test_available_sends_jobs_to_every_available_client() -> None:
    loop = start(Available(), scripted(1.0, 2.0, 3.0), 3)
    assert loop.pool.busy == 3
    assert [loop.turn().stepped for _ in range(6)] == [False, False, True] * 2
    assert loop.transport.now == 6.0


def test_an_anarchic_worker_idles_as_long_as_configured() -> None:
    scheduler = Anarchic(idle=30.0, probabilities=(1.0, 3.0))
    scheduler.start(2)
    means = [sum(scheduler.gap(client, key(client, n)) for n in range(4000)) / 4000 for client in range(2)]
    assert means[0] == pytest.approx(60.0, rel=0.1), "half the arrivals that an equal share would bring"
    assert means[1] == pytest.approx(20.0, rel=0.1)


@pytest.mark.parametrize("scheduler", [Buffered(concurrency=2, buffer=2), Continuous(concurrency=2, buffer=2)])
def test_a_lost_client_is_replaced_so_that_the_buffer_fills(scheduler: Scheduler) -> None:
    """M = M_c with one lost: without the replacement the server would wait forever."""
    loop = start(scheduler, scripted(1.0, None, 1.0, 1.0), 4)
    for _ in range(50):
        loop.turn()
    assert loop.algorithm.version >= 2


PLANNED = [Buffered(concurrency=5, buffer=3), Continuous(concurrency=5, buffer=3), PerArrival(concurrency=5)]


@pytest.mark.parametrize("scheduler", [*PLANNED, Rounds(concurrency=4), Anarchic(buffer=3)], ids=repr)
def test_steps_use_the_stated_number_of_updates(scheduler: Scheduler) -> None:
    """A private sum is divided by this number."""
    loop = start(scheduler, Environment(delay=HalfNormal(), loss=0.0), 6)
    counts, since = [], 0
    for outcome in turns_until(loop, 20):
        since += outcome.aggregated
        if outcome.stepped:
            counts.append(since)
            since = 0
    assert set(counts) == {scheduler.updates}
    assert Periodic().updates is None
    assert Available().updates is None


def test_unavailable_clients_get_no_jobs_and_the_server_looks_again() -> None:
    environment = Environment(delay=Constant(value=0.25), availability=Bernoulli(probability=0.2, slot=1.0))
    loop = start(PerArrival(concurrency=3), environment, 4)
    seen = 0
    for _ in range(400):
        outcome = loop.turn()
        if isinstance(outcome.event, Arrival):
            seen += 1
            assert environment.awake(0, outcome.event.job.client, outcome.event.sent)
    assert seen > 50


def test_more_updates_than_clients_is_refused() -> None:
    with pytest.raises(ConfigError, match="buffer: 11 updates per step cannot come from concurrency = 10"):
        Buffered(concurrency=10, buffer=11)


@pytest.mark.parametrize(
    ("concurrency", "buffer", "largest"), [(15, 10, 3), (20, 10, 4), (25, 10, 5), (20, 15, 2), (20, 5, 9)]
)
def test_staleness_of_the_ca2fl_experiments(concurrency: int, buffer: int, largest: int) -> None:
    """Wang et al., tables 4: N = 100, 500 rounds; the largest delay printed there, and by Little's law a mean of
    about M_c/M − 1. Another seed changes the largest by one."""
    loop = start(Buffered(concurrency=concurrency, buffer=buffer), Environment(delay=HalfNormal()), 100)
    taus = []
    for outcome in turns_until(loop, 500):
        taus.append(outcome.staleness)
    assert abs(max(taus) - largest) <= 1
    assert abs(sum(taus) / len(taus) - (concurrency / buffer - 1)) < 0.1
