"""Which clients are available, and when that can change."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offbeat as ob
from offbeat.data import Digits, LabelShards
from offbeat.environment import AVAILABILITIES, Always, Availability, Bernoulli, ByLabel, Constant
from offbeat.errors import ConfigError
from offbeat.models import LR
from offbeat.random import key

# 0.1, 0.3 and their like are not exact in binary, so that n·slot / slot may round to just below n.
SLOTS = st.sampled_from([1.0, 0.1, 0.3, 0.7, 1 / 3, 1e-3, 2.5, 60.1, 3600.0]) | st.floats(1e-3, 1e4)
NUMBERS = st.integers(0, 10**6)


def awake(law: Availability, client: int, now: float) -> bool:
    return law.span(client, key("client", client), now)[0]


def pattern(law: Bernoulli, now: float) -> list[bool]:
    """Return which of many clients are available; two slots agree by chance with probability 2^−64."""
    return [awake(law, client, now) for client in range(64)]


def test_always() -> None:
    assert all(awake(Always(), c, t) for c in range(10) for t in (0.0, 1e9))
    assert Always().next_change(5.0) == math.inf
    assert Always().span(3, 0, 5.0) == (True, math.inf)
    assert Always().probability_of(7) == 1.0
    assert list(AVAILABILITIES) == ["always", "bernoulli", "by-label", "trace"]


def test_each_client_has_its_own_rate() -> None:
    rates, slots = (0.0, 0.1, 0.5, 0.9, 1.0), 20_000
    law = Bernoulli(probability=rates, slot=0.1)
    for client, rate in enumerate(rates):
        share = np.mean([awake(law, client, (n + 0.5) * 0.1) for n in range(slots)])
        assert abs(share - rate) <= 4 * math.sqrt(rate * (1 - rate) / slots)


def test_one_rate_for_all() -> None:
    law = Bernoulli(probability=0.3)
    up = np.array([[awake(law, c, float(n)) for n in range(200)] for c in range(200)])
    assert abs(up.mean() - 0.3) < 4 * math.sqrt(0.3 * 0.7 / up.size)
    # If slots or clients were coupled, the shares by client or by slot would scatter more than binomially.
    for shares in (up.mean(axis=0), up.mean(axis=1)):
        assert shares.var() == pytest.approx(0.3 * 0.7 / 200, rel=0.5)


def test_neighboring_slots_and_clients_are_independent() -> None:
    law, n = Bernoulli(probability=0.5), 20_000
    one, other = (np.array([awake(law, c, float(s)) for s in range(n)], float) for c in (0, 1))
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 4 / math.sqrt(n)
    assert abs(np.corrcoef(one, other)[0, 1]) < 4 / math.sqrt(n)


@given(SLOTS, NUMBERS, st.lists(st.floats(0, 0.999999), min_size=2, max_size=4))
@settings(max_examples=100, deadline=None)
def test_nothing_changes_within_a_slot(slot: float, number: int, fractions: list[float]) -> None:
    law = Bernoulli(slot=slot)
    start = pattern(law, number * slot)
    assert all(pattern(law, (number + fraction) * slot) == start for fraction in fractions)


@given(SLOTS, NUMBERS, st.floats(0, 0.999999))
@settings(max_examples=200, deadline=None)
def test_the_next_change_is_later_and_in_the_next_slot(slot: float, number: int, fraction: float) -> None:
    law = Bernoulli(slot=slot)
    now = (number + fraction) * slot
    then = law.next_change(now)
    assert now < then <= (number + 1) * slot * (1 + 1e-12)
    assert pattern(law, then) == pattern(law, (number + 1.5) * slot) != pattern(law, now)


@pytest.mark.parametrize("slot", [0.1, 0.3, 1 / 3, 1e-3, 60.1])
def test_going_from_change_to_change_misses_no_slot_and_repeats_none(slot: float) -> None:
    law, now = Bernoulli(slot=slot), 0.0
    for number in range(1, 5001):
        now = law.next_change(now)
        assert now == pytest.approx(number * slot, rel=1e-12)


@pytest.mark.parametrize(("slot", "number"), [(0.1, 178_784_207), (3.9298055996854613, 17_080_280)])
def test_the_next_change_is_later_also_after_a_long_time(slot: float, number: int) -> None:
    now = number * slot
    assert Bernoulli(slot=slot).next_change(now) > now


@given(SLOTS, NUMBERS, st.floats(0, 0.999999))
@settings(max_examples=100, deadline=None)
def test_a_span_lasts_to_the_end_of_the_slot(slot: float, number: int, fraction: float) -> None:
    law = Bernoulli(slot=slot)
    now = (number + fraction) * slot
    until = law.span(0, key("client", 0), now)[1]
    assert until == law.next_change(now) > now
    middle = now + (until - now) / 2
    if middle < until:
        assert law.span(0, key("client", 0), middle) == law.span(0, key("client", 0), now)


def test_the_law_knows_its_probabilities() -> None:
    assert [Bernoulli(probability=(0.1, 0.7)).probability_of(client) for client in (0, 1)] == [0.1, 0.7]
    assert [Bernoulli(probability=0.4).probability_of(client) for client in (0, 99)] == [0.4, 0.4]


def test_too_few_rates() -> None:
    law = Bernoulli(probability=(0.5, 0.5))
    law.span(1, 0, 0.0)
    with pytest.raises(ConfigError, match="probability: 2 values, but there is a client 2"):
        law.span(2, 0, 0.0)


@pytest.mark.parametrize(
    ("values", "field"),
    [({"probability": 1.5}, "probability"), ({"probability": (0.5, -0.1)}, "probability"), ({"slot": 0.0}, "slot")],
)
def test_bounds(values: dict[str, float], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Bernoulli(**values)
    assert caught.value.key == field


def test_availability_depends_on_the_labels() -> None:
    counts = np.array([[5, 1, 0, 0], [0, 2, 0, 3], [0, 0, 4, 1]])
    majority = ByLabel(least=0.1, slot=2.0).among(lambda: counts)
    assert majority == Bernoulli(probability=(0.1, 1.0, 0.1 + 0.9 * 2 / 3), slot=2.0)
    smallest = ByLabel(least=0.4, label="smallest").among(lambda: counts)
    assert smallest.probability == pytest.approx((0.4, 0.6, 0.8))
    assert Always().among(lambda: counts) == Always()


def test_a_run_whose_availability_depends_on_the_labels() -> None:
    """Importance sampling knows the probabilities; clients with high labels participate more often."""
    result = ob.run(
        data=Digits(), clients=20, partition=LabelShards(classes=1), model=LR(),
        algorithm=ob.algorithms.FedAvgIS(), scheduler=ob.schedulers.Available(),
        environment=ob.Environment(delay=Constant(value=1.0), availability=ByLabel(least=0.1)), rounds=40,
    )  # fmt: skip
    assert 40 * 20 * 0.4 < result.summary["updates"] < 40 * 20 * 0.7
