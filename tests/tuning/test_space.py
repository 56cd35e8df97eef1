"""Search spaces."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest

import offbeat as ob
from offbeat.tuning.space import space_of

SHARES = [n / 1000 for n in range(1000)]


def test_values_cover_the_range() -> None:
    numbers = [ob.uniform(0.5, 2).at(share) for share in SHARES]
    assert min(numbers) == 0.5
    assert max(numbers) == pytest.approx(2, abs=0.01)
    assert sum(numbers) / 1000 == pytest.approx(1.25, abs=0.01)
    orders = [ob.log_uniform(1e-4, 1).at(share) for share in SHARES]
    assert sum(value < 1e-2 for value in orders) == pytest.approx(500, abs=1), "half of the range of the logarithm"
    counts = [ob.integers(2, 5).at(share) for share in SHARES]
    assert {value: counts.count(value) for value in counts} == dict.fromkeys([2, 3, 4, 5], 250)
    assert [ob.choice(["a", [1]]).at(share) for share in (0, 0.49, 0.5, 0.999)] == ["a", "a", [1], [1]]


def test_values_have_four_digits_and_stay_in_the_range() -> None:
    bounds = 0.123456, 0.123459
    for kind in (ob.uniform, ob.log_uniform):
        assert all(bounds[0] <= kind(*bounds).at(share) <= bounds[1] for share in SHARES)
        assert kind(0.1, 0.9).at(1 / 3) == float(f"{kind(0.1, 0.9).at(1 / 3):.4g}")


def test_tables_describe_spaces() -> None:
    text = """
client.lr = { log_uniform = [1e-3, 1] }
client.steps = { integers = [1, 5] }
algorithm.eta = [0.3, 1.0]
"algorithm.staleness" = { choice = ["constant", "polynomial"] }
scheduler = { buffer = { uniform = [1, 2] } }
"""
    assert space_of(tomllib.loads(text)) == {
        "client.lr": ob.log_uniform(1e-3, 1),
        "client.steps": ob.integers(1, 5),
        "algorithm.eta": ob.choice([0.3, 1.0]),
        "algorithm.staleness": ob.choice(["constant", "polynomial"]),
        "scheduler.buffer": ob.uniform(1, 2),
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "space: empty"),
        ([1], "space: .* is not a table"),
        ({"client": {"lr": 0.1}}, "client.lr: 0.1 is neither a list nor a range"),
        ({"client.lr": 0.1}, "client.lr: 0.1 is neither a list nor a range"),
        ({"client.lr": []}, "client.lr: a choice needs at least one value"),
        ({"client.lr": {"log_uniform": [0, 1]}}, "client.lr: a logarithmic range begins above 0, not at 0"),
        ({"client.lr": {"uniform": [1, 1]}}, "client.lr: the range begins at 1, which is not below its end, 1"),
        ({"client.lr": {"uniform": [1]}}, "client.lr: uniform needs two numbers"),
        ({"client.lr": {"uniform": [0, math.inf]}}, "client.lr: inf is not a number"),
        ({"client.steps": {"integers": [1.5, 2]}}, "client.steps: 1.5 and 2 are not two integers"),
        ({"client": {"lr": {"loguniform": [0.1, 1]}}}, "client.lr: unknown range.*log_uniform"),
        ({"seed": [1, 2]}, "seed: not a hyperparameter"),
        ({"algorithm.name": ["fedbuff"]}, "algorithm.name: not a hyperparameter"),
    ],
)
def test_mistakes(given: Any, message: str) -> None:
    with pytest.raises(ob.ConfigError, match=message):
        space_of(given)
