"""Delays compared with theory: means, standard deviations, whole distributions, and per-client factors."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from offbeat.environment import (
    DELAYS,
    Constant,
    Delay,
    Devices,
    Exponential,
    HalfNormal,
    LogNormal,
    Speeds,
    Trip,
    Uniform,
)
from offbeat.errors import ConfigError
from offbeat.random import key

N = 20_000
Cdf = Callable[[float], float]


def trip(client: int = 0, number: int = 0, steps: int = 1, down: int = 0, up: int = 0) -> Trip:
    return Trip(client, key("client", client), key("trip", client, number), steps, down, up)


def phi(z: float) -> float:
    return (1 + math.erf(z / math.sqrt(2))) / 2


def over_trips(law: Delay, client: int = 0) -> NDArray[np.float64]:
    return np.array([law.seconds(trip(client, n)) for n in range(N)])


def over_clients(law: Delay, **what: int) -> NDArray[np.float64]:
    return np.array([law.seconds(trip(c, **what)) for c in range(N)])


def assert_follows(sample: NDArray[np.float64], cdf: Cdf) -> None:
    """All quantiles at once (Kolmogorov and Smirnov); the true law exceeds the limit once in a thousand samples."""
    theory = np.array([cdf(float(t)) for t in np.sort(sample)])
    n = len(sample)
    distance = max((np.arange(1, n + 1) / n - theory).max(), (theory - np.arange(n) / n).max())
    assert distance < 1.95 / math.sqrt(n)


LAWS = {
    "uniform": (Uniform(low=2, high=5), lambda t: (t - 2) / 3, 3.5, 3 / math.sqrt(12)),
    "exponential": (Exponential(mean=2.5), lambda t: 1 - math.exp(-t / 2.5), 2.5, 2.5),
    "half-normal": (
        HalfNormal(scale=2, low=3, high=3),
        lambda t: 2 * phi((t - 3) / 2) - 1,
        3 + 2 * math.sqrt(2 / math.pi),
        2 * math.sqrt(1 - 2 / math.pi),
    ),
    "log-normal": (
        LogNormal(median=3, sigma=0.5),
        lambda t: phi(math.log(t / 3) / 0.5),
        3 * math.exp(0.125),
        3 * math.exp(0.125) * math.sqrt(math.exp(0.25) - 1),
    ),
    "speeds": (  # a client's trips differ by the jitter only
        Speeds(seconds_per_step=(4.0,), jitter=0.2),
        lambda t: phi(math.log(t / 4) / 0.2),
        4 * math.exp(0.02),
        4 * math.exp(0.02) * math.sqrt(math.exp(0.04) - 1),
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_trips_of_a_client_follow_the_law(name: str) -> None:
    law, cdf, mean, deviation = LAWS[name]
    sample = over_trips(law)
    assert abs(sample.mean() - mean) < 4 * deviation / math.sqrt(N)
    assert sample.std() == pytest.approx(deviation, rel=0.03)
    assert_follows(sample, cdf)


@pytest.mark.parametrize("name", [name for name in DELAYS if name not in ("mix", "fedscale", "flash")])
def test_the_same_trip_takes_the_same_time_and_another_trip_another(name: str) -> None:
    law, again = DELAYS[name](), DELAYS[name]()
    there = [trip(c, n, steps=3, down=100, up=100) for c in range(10) for n in range(3)]
    assert [law.seconds(t) for t in there] == [again.seconds(t) for t in there]
    assert all(0 <= law.seconds(t) < math.inf for t in there)
    different = len({law.seconds(t) for t in there})
    assert different == {"constant": 1, "devices": 10}.get(name, 30)


def test_constant() -> None:
    assert set(over_trips(Constant(value=2.5))) == {2.5}


def test_half_normal_shift_belongs_to_the_client_and_is_uniform() -> None:
    bare = HalfNormal(scale=0, low=1, high=4)
    assert len({bare.seconds(trip(7, n)) for n in range(100)}) == 1
    shifts = over_clients(bare)
    assert_follows(shifts, lambda t: (t - 1) / 3)
    law = HalfNormal(scale=2, low=1, high=4)
    noise = over_clients(law) - shifts
    assert noise.min() >= 0
    assert_follows(noise, lambda t: 2 * phi(t / 2) - 1)
    assert abs(np.corrcoef(shifts, noise)[0, 1]) < 4 / math.sqrt(N)


def test_half_normal_defaults_are_the_paper_s() -> None:
    """halfnorm(s), s ~ U(0, 5): the mean over clients is 2.5 + √(2/π)."""
    law = HalfNormal()
    deviation = math.sqrt(25 / 12 + 1 - 2 / math.pi)
    assert abs(over_clients(law).mean() - 2.5 - math.sqrt(2 / math.pi)) < 4 * deviation / math.sqrt(N)


def test_exponential_spread_is_a_factor_that_belongs_to_the_client() -> None:
    plain, spread = Exponential(mean=3), Exponential(mean=3, spread=(0.5, 2.0))
    ratios = [spread.seconds(trip(5, n)) / plain.seconds(trip(5, n)) for n in range(50)]
    assert np.ptp(ratios) < 1e-12
    assert_follows(over_clients(spread) / over_clients(plain), lambda t: (t - 0.5) / 1.5)


def test_speeds_are_proportional_to_steps_and_constant_for_a_client() -> None:
    law = Speeds(jitter=0)
    assert len({law.seconds(trip(3, n)) for n in range(100)}) == 1
    assert law.seconds(trip(3, steps=7)) == pytest.approx(7 * law.seconds(trip(3, steps=1)), rel=1e-12)
    assert law.step_seconds(trip(3)) == law.seconds(trip(3, steps=1))


def test_speeds_are_drawn_log_normally_over_clients() -> None:
    assert_follows(over_clients(Speeds(median=0.2, sigma=0.7, jitter=0)), lambda t: phi(math.log(t / 0.2) / 0.7))


def test_speeds_given_are_taken_with_jitter_around_them() -> None:
    law = Speeds(seconds_per_step=(0.5, 2.0), jitter=0, stragglers=1.0)
    assert law.seconds(trip(0, steps=3)) == 1.5
    assert law.seconds(trip(1, steps=3)) == 6.0
    shaky = Speeds(seconds_per_step=(0.5, 2.0), jitter=0.1)
    assert np.median([shaky.seconds(trip(1, n)) for n in range(2000)]) == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 1.0])
def test_a_share_of_the_clients_are_stragglers(share: float) -> None:
    """Without other variation there are exactly two speeds, and a slow client stays slow."""
    law = Speeds(median=0.5, sigma=0, jitter=0, stragglers=share, slowdown=8)
    seconds = over_clients(law)
    assert set(seconds) <= {0.5, 4.0}
    assert abs((seconds == 4.0).mean() - share) <= 4 * math.sqrt(share * (1 - share) / N)
    np.testing.assert_array_equal(seconds, over_clients(law, number=9))


def test_straggling_is_independent_of_the_base_speed() -> None:
    """Whether a client is a straggler is independent of its speed."""
    usual = over_clients(Speeds(sigma=0.5, jitter=0))
    slow = over_clients(Speeds(sigma=0.5, jitter=0, stragglers=0.5, slowdown=8)) / usual
    assert set(np.round(slow, 9)) == {1.0, 8.0}
    assert abs(np.corrcoef(np.log(usual), slow > 4)[0, 1]) < 4 / math.sqrt(N)


def test_devices_given_are_compute_plus_network_exactly() -> None:
    law = Devices(seconds_per_step=(0.25, 0.5), up=(1000.0, 2000.0), down=(4000.0, 8000.0))
    # 8 steps of ¼ s, 6000 bytes down at 4000/s, 500 up at 1000/s; every number is exact in binary.
    assert law.seconds(trip(0, steps=8, down=6000, up=500)) == 2.0 + 1.5 + 0.5
    assert law.seconds(trip(1, steps=8, down=6000, up=500)) == 4.0 + 0.75 + 0.25
    assert law.seconds(trip(1, number=5, steps=0, down=0, up=0)) == 0.0


@pytest.mark.parametrize(
    ("what", "median"), [({"steps": 1}, 0.2), ({"steps": 0, "down": 1000}, 0.5), ({"steps": 0, "up": 1000}, 2.0)]
)
def test_devices_drawn_are_log_normal_around_their_medians(what: dict[str, int], median: float) -> None:
    law = Devices(median_step=0.2, median_down=2000, median_up=500, sigma=0.8)
    sample = over_clients(law, **what)
    assert_follows(sample, lambda t: phi(math.log(t / median) / 0.8))
    np.testing.assert_array_equal(sample[:50], [law.seconds(trip(c, number=4, **what)) for c in range(50)])


def test_devices_draw_compute_up_and_down_independently() -> None:
    law = Devices(sigma=0.8)
    parts = [over_clients(law, **what) for what in ({"steps": 1}, {"steps": 0, "up": 9}, {"steps": 0, "down": 9})]
    correlations = np.corrcoef(np.log(parts))
    assert np.abs(correlations - np.eye(3)).max() < 4 / math.sqrt(N)


@pytest.mark.parametrize(
    "law", [Devices(sigma=0.8), Devices(seconds_per_step=(0.5,) * 20, up=(3000.0,) * 20, down=(7.0,) * 20)]
)
def test_the_profile_of_a_device_is_what_its_trips_cost(law: Devices) -> None:
    """α_i is the cost of one more step, β_i that of uploading the whole model."""
    for client in range(20):
        alpha, beta = law.profile(client, key("client", client), 5000)
        base = law.seconds(trip(client, steps=2, down=10))
        assert law.seconds(trip(client, number=3, steps=3, down=10)) - base == pytest.approx(alpha, rel=1e-9)
        assert law.seconds(trip(client, number=4, steps=2, down=10, up=5000)) - base == pytest.approx(beta, rel=1e-9)


def test_the_profile_of_devices_given() -> None:
    law = Devices(seconds_per_step=(0.25, 0.5), up=(1000.0, 2000.0))
    assert law.profile(0, 0, 4000) == (0.25, 4.0)
    assert law.profile(1, 0, 4000) == (0.5, 2.0)
    with pytest.raises(ConfigError, match="seconds_per_step: 2 values, but there is a client 2"):
        law.profile(2, 0, 4000)


@pytest.mark.parametrize(
    "name", [name for name in DELAYS if name not in ("devices", "speeds", "mix", "fedscale", "flash")]
)
def test_no_other_law_has_a_profile(name: str) -> None:
    assert DELAYS[name]().profile(0, key("client", 0), 1000) is None


@pytest.mark.parametrize(
    ("law", "field"),
    [
        (Speeds(seconds_per_step=(1.0, 2.0)), "seconds_per_step"),
        (Devices(seconds_per_step=(1.0, 2.0)), "seconds_per_step"),
        (Devices(up=(1.0, 2.0)), "up"),
        (Devices(down=(1.0, 2.0)), "down"),
    ],
)
def test_a_list_that_is_too_short(law: Delay, field: str) -> None:
    law.seconds(trip(1))
    with pytest.raises(ConfigError) as caught:
        law.seconds(trip(2))
    assert caught.value.key == field
    assert str(caught.value) == f"{field}: 2 values, but there is a client 2: give one per client"


def test_an_upper_end_below_the_lower_one() -> None:
    for make in (lambda: Uniform(low=2, high=1), lambda: HalfNormal(low=2, high=1), lambda: Exponential(spread=(2, 1))):
        with pytest.raises(ConfigError, match="2 is above the upper end, 1"):
            make()
    assert Uniform(low=2, high=2).seconds(trip()) == 2


@pytest.mark.parametrize(
    ("law", "values"),
    [
        (Constant, {"value": 0}),
        (Uniform, {"low": -1.0}),
        (Exponential, {"mean": 0}),
        (Exponential, {"spread": (0.0, 1.0)}),
        (HalfNormal, {"scale": -1}),
        (LogNormal, {"median": 0}),
        (Speeds, {"seconds_per_step": (1.0, 0.0)}),
        (Speeds, {"stragglers": 1.5}),
        (Devices, {"up": (-1.0,)}),
    ],
)
def test_bounds(law: type[Delay], values: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        law(**values)
    assert caught.value.key == next(iter(values))
