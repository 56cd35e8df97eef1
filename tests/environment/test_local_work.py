"""The number of local steps that a client performs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from offbeat.environment import LOCAL_WORK, Battery, Environment, LocalWork, PerClient, Requested, UniformSteps
from offbeat.errors import ConfigError
from offbeat.random import key, uniform

N = 10_000


def steps(law: LocalWork, client: int = 0, number: int = 0, asked: int = 10, now: float = 0.0) -> int:
    return law.steps(asked, client, key("client", client), key("trip", client, number), now)


def test_names() -> None:
    assert {"requested": Requested, "uniform": UniformSteps, "per-client": PerClient, "battery": Battery} == LOCAL_WORK


def test_requested_steps_are_unchanged() -> None:
    assert Environment().local_work == Requested()
    assert all(steps(Requested(), n, n, asked, 7.0 * n) == asked for n, asked in enumerate((1, 3, 50)))


@pytest.mark.parametrize("name", LOCAL_WORK)
def test_at_least_one_step_and_always_the_same_for_the_same_trip(name: str) -> None:
    law, again = LOCAL_WORK[name](), LOCAL_WORK[name]()
    trips = [(c, n, asked, 9.0 * n) for c in range(10) for n in range(10) for asked in (1, 2, 30)]
    did = [steps(law, *trip) for trip in trips]
    assert did == [steps(again, *trip) for trip in trips]
    assert min(did) >= 1


@pytest.mark.parametrize("mean", [1, 2, 5])
def test_uniform_steps_are_uniform_on_one_to_twice_the_mean(mean: int) -> None:
    """U{1, …, 2c} has the mean c + ½ and the variance ((2c)² − 1)/12; whatever was requested."""
    sample = np.array([steps(UniformSteps(mean=mean), number=n, asked=1 + n % 7) for n in range(N)])
    counts = Counter(sample.tolist())
    assert set(counts) == set(range(1, 2 * mean + 1))
    assert abs(sample.mean() - mean - 0.5) < 4 * np.sqrt(((2 * mean) ** 2 - 1) / 12 / N)
    share = 1 / (2 * mean)
    for count in counts.values():
        assert abs(count / N - share) < 4.5 * np.sqrt(share * (1 - share) / N)


def test_uniform_steps_belong_to_the_trip() -> None:
    law = UniformSteps(mean=50)
    assert len({steps(law, number=n) for n in range(50)}) > 20
    assert {steps(law, number=3, now=now, asked=asked) for now in (0.0, 5.0) for asked in (1, 9)} == {
        steps(law, number=3)
    }


def test_a_client_keeps_its_number_of_steps_drawn_from_the_range() -> None:
    law = PerClient(low=3, high=6)
    for client in range(50):
        assert len({steps(law, client, n, asked=1 + n, now=3.0 * n) for n in range(20)}) == 1
    counts = Counter(steps(law, client) for client in range(N))
    assert set(counts) == {3, 4, 5, 6}
    for count in counts.values():
        assert abs(count / N - 0.25) < 4 * np.sqrt(0.25 * 0.75 / N)
    assert steps(PerClient(low=4, high=4)) == 4


def test_given_numbers_are_used() -> None:
    law = PerClient(values=(7, 1, 30), low=2, high=3)
    assert [steps(law, client, number=client) for client in range(3)] == [7, 1, 30]
    with pytest.raises(ConfigError) as caught:
        steps(law, 3)
    assert caught.value.key == "values"
    assert str(caught.value).startswith("values: 3 values, but there is a client 3")


@pytest.mark.parametrize("charging", [0.0, 0.3, 0.8])
def test_a_battery_charges_and_discharges_in_cycles(charging: float) -> None:
    """A plugged-in client does everything requested; later fewer steps, down to one, until it is charged again."""
    law, asked = Battery(period=50, charging=charging), 40
    for client in range(8):
        phase = uniform(key(key("client", client), "battery"))
        start = 50 * (1 - phase)  # a cycle begins
        moments = start + 50 * (np.arange(2000) + 0.5) / 2000
        did = np.array([steps(law, client, asked=asked, now=float(t)) for t in moments])
        plugged = np.arange(2000) + 0.5 < 2000 * charging
        assert (did[plugged] == asked).all()
        drained = did[~plugged]
        assert (np.diff(drained) <= 0).all(), "the charge only falls"
        assert drained[0] == asked
        assert drained[-1] == 1
        # The charge falls evenly from 1 to 0, so on battery half of what is asked is done on average.
        assert drained.mean() == pytest.approx(asked / 2, rel=0.02)
        assert did.min() >= 1
        assert did.max() <= asked


def test_batteries_are_periodic_and_do_not_stand_alike() -> None:
    law = Battery(period=8, charging=0.25)
    moments = [0.01 * n for n in range(800)]
    for client in range(10):
        now, later = ([steps(law, client, number=n, now=t + n * 8) for t in moments] for n in (0, 2))
        # Rounding of the later time may move a change by one moment; there are ten changes in a cycle.
        assert sum(one != other for one, other in zip(now, later, strict=True)) <= 10
    plugged = np.mean([steps(law, client, asked=10**6) == 10**6 for client in range(N)])
    assert abs(plugged - 0.25) < 4 * np.sqrt(0.25 * 0.75 / N), "where it stands at time zero is its own"


def test_always_on_the_mains() -> None:
    assert {steps(Battery(charging=1.0), client, now=3.3 * client) for client in range(200)} == {10}


def test_the_environment_uses_the_clients_key_and_the_jobs_seed() -> None:
    for law in (UniformSteps(mean=20), PerClient(high=50), Battery()):
        for client in range(5):
            expected = law.steps(12, client, key(3, "device", client), 99, 4.0)
            assert Environment(local_work=law).steps(3, 12, client, 99, 4.0) == expected


@pytest.mark.parametrize(
    ("law", "values"),
    [
        (UniformSteps, {"mean": 0}),
        (PerClient, {"values": (3, 0)}),
        (PerClient, {"low": 0}),
        (Battery, {"period": 0.0}),
        (Battery, {"charging": 1.5}),
    ],
)
def test_bounds(law: type[LocalWork], values: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        law(**values)
    assert caught.value.key == next(iter(values))


def test_an_upper_end_below_the_lower_one() -> None:
    with pytest.raises(ConfigError):
        PerClient(low=9, high=3)
