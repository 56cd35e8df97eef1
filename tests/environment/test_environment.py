"""The environment: trips, losses, timeouts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.support import job

from offbeat.environment import Bernoulli, Constant, Devices, Environment, HalfNormal, Speeds, Uniform
from offbeat.errors import ConfigError
from offbeat.messages import Job
from offbeat.random import key

N = 20_000
X = torch.zeros(1)


def sent(number: int, client: int = 0, steps: int = 3) -> Job:
    return job(number, client, version=0, x=X, steps=steps, seed=key(0, "job", client, number))


def trips(environment: Environment, count: int = N) -> list[tuple[float, bool]]:
    """Return the ends of trips that start at time zero, which are their durations."""
    return [environment.trip(0, sent(n), 100, 100, 0.0) for n in range(count)]


def test_by_default_everything_arrives() -> None:
    environment = Environment()
    assert environment.delay == HalfNormal()
    assert all(arrives and 0 <= seconds < math.inf for seconds, arrives in trips(environment, 1000))
    assert all(environment.awake(0, client, 3.0) for client in range(10))


@pytest.mark.parametrize("loss", [0.05, 0.5, 0.95])
def test_the_configured_share_of_trips_is_lost_and_ends_with_the_timeout(loss: float) -> None:
    ends = trips(Environment(delay=Constant(value=2), loss=loss, trip_timeout=9))
    assert set(ends) == {(2.0, True), (9.0, False)}
    lost = np.mean([not arrives for _, arrives in ends])
    assert abs(lost - loss) < 4 * math.sqrt(loss * (1 - loss) / N)


def test_a_trip_longer_than_the_timeout_is_lost_and_no_other() -> None:
    delay = Uniform(low=0, high=10)
    free, impatient = trips(Environment(delay=delay)), trips(Environment(delay=delay, trip_timeout=4))
    assert all(
        now == ((seconds, True) if seconds <= 4 else (4, False))
        for (seconds, _), now in zip(free, impatient, strict=True)
    )
    assert abs(np.mean([arrives for _, arrives in impatient]) - 0.4) < 4 * math.sqrt(0.24 / N)


def test_a_trip_as_long_as_the_timeout_arrives() -> None:
    assert Environment(delay=Constant(value=4), trip_timeout=4).trip(0, sent(0), 1, 1, 0.0) == (4, True)


def test_losses_do_not_change_the_luck_of_the_other_trips() -> None:
    """Common random numbers: losses remove some trips and leave the others unchanged."""
    delay = Uniform(low=0, high=1)
    free, lossy = trips(Environment(delay=delay)), trips(Environment(delay=delay, loss=0.5, trip_timeout=100))
    arrived = [(f, now) for f, now in zip(free, lossy, strict=True) if now[1]]
    assert all(f == now for f, now in arrived)
    mean = np.mean([seconds for _, (seconds, _) in arrived])
    assert abs(mean - 0.5) < 4 / math.sqrt(12 * len(arrived)), "losses do not pick the slow or the quick"


def test_a_trip_follows_from_the_seed_the_client_and_the_job_s_seed_alone() -> None:
    environment = Environment(delay=HalfNormal(), loss=0.3, trip_timeout=4)
    assert trips(environment, 500) == trips(Environment(delay=HalfNormal(), loss=0.3, trip_timeout=4), 500)
    calm = Environment(delay=HalfNormal())
    usual = calm.trip(0, job(1, 2, 0, X, seed=5), 10, 10, 0.0)
    assert calm.trip(0, job(99, 2, 7, X + 1, seed=5), 10, 10, 0.0) == usual
    assert calm.trip(0, job(1, 2, 0, X, seed=6), 10, 10, 0.0) != usual
    assert calm.trip(0, job(1, 3, 0, X, seed=5), 10, 10, 0.0) != usual, "another client has another shift"
    assert calm.trip(1, job(1, 2, 0, X, seed=5), 10, 10, 0.0) != usual, "another seed has other clients"


def test_a_client_keeps_its_device_from_trip_to_trip() -> None:
    environment = Environment(delay=Speeds(jitter=0))
    assert len({environment.trip(0, sent(n, client=4), 1, 1, 0.0) for n in range(50)}) == 1
    assert len({environment.trip(0, sent(0, client=c), 1, 1, 0.0) for c in range(50)}) == 50


def test_steps_and_bytes_reach_the_delay_law() -> None:
    environment = Environment(delay=Devices(seconds_per_step=(9.0, 0.5), down=(9.0, 100.0), up=(9.0, 10.0)))
    assert environment.trip(0, sent(0, client=1, steps=4), 300, 20, 0.0) == (4 * 0.5 + 300 / 100 + 20 / 10, True)


def test_a_trip_ends_after_its_delay() -> None:
    environment = Environment(delay=HalfNormal(), loss=0.3, trip_timeout=4)
    for n, (seconds, arrives) in enumerate(trips(environment, 500)):
        end, also = environment.trip(0, sent(n), 100, 100, 1000.0)
        assert end == pytest.approx(1000 + seconds, rel=1e-12)
        assert also == arrives
    assert Environment(delay=Constant(value=4)).trip(0, sent(0), 1, 1, 10.0) == (14, True)
    assert Environment(delay=Constant(value=4), trip_timeout=3).trip(0, sent(0), 1, 1, 10.0) == (13, False)


def test_loss_needs_a_timeout() -> None:
    with pytest.raises(ConfigError) as caught:
        Environment(loss=0.1)
    assert caught.value.key == "trip_timeout"
    assert str(caught.value) == (
        "trip_timeout: required with loss = 0.1: otherwise the server waits forever for a lost update"
    )
    Environment(loss=0.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss": 1.0, "trip_timeout": 5.0}, "loss: 1.0 is not a number ≥ 0 and < 1"),
        ({"loss": -0.1, "trip_timeout": 5.0}, "loss: -0.1 is not a number ≥ 0 and < 1"),
        ({"trip_timeout": 0.0}, "trip_timeout: 0.0 is not a number > 0"),
        ({"trip_timeout": math.inf}, "trip_timeout: inf is not a number > 0"),
    ],
)
def test_bounds(values: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Environment(**values)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_availability_follows_from_the_seed_and_the_client() -> None:
    environment = Environment(availability=Bernoulli(probability=0.5, slot=2.0))

    def nights(seed: int, client: int) -> list[bool]:
        return [environment.awake(seed, client, 2.0 * n) for n in range(64)]

    assert nights(0, 3) == nights(0, 3)
    assert nights(0, 3) != nights(0, 4)
    assert nights(0, 3) != nights(1, 3)
    sleepy = Environment(availability=Bernoulli(probability=(1.0, 0.0)))
    assert [sleepy.awake(0, client, 0.0) for client in (0, 1)] == [True, False]
