"""Bounds of hyper-parameters, and the words in which they are refused."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import pytest

from offbeat.errors import ConfigError, DataError, DivergenceError, OffbeatError, RunFolderError, nearest
from offbeat.options import Bound, Count, Natural, NonNegative, Options, Positive, Probability


@dataclass(kw_only=True, frozen=True)
class Everything(Options):
    positive: Positive = 1.0
    non_negative: NonNegative = 0.0
    probability: Probability = 0.5
    count: Count = 1
    natural: Natural = 0
    maybe: Positive | None = None
    many: tuple[Positive, ...] = ()
    pair: tuple[Probability, Probability] = (0.0, 1.0)
    one_or_many: Probability | tuple[Probability, ...] = 0.5
    half_open: Annotated[float, Bound(low=-1, high=1, open="high")] = 0.0
    between: Annotated[float, Bound(low=-1, high=1, open="low high")] = 0.0
    any_number: Annotated[float, Bound()] = 0.0
    free: float = 0.0
    name: str = "x"


@dataclass
class Mutable(Options):
    rate: Positive


@dataclass(kw_only=True, frozen=True)
class More(Everything):
    """Inherited fields keep their bounds, and new ones have their own."""

    extra: Count = 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("positive", 5e-324),
        ("positive", 1e308),
        ("positive", 3),  # an integer is a number
        ("non_negative", 0),
        ("probability", 0),
        ("probability", 1),
        ("count", 1),
        ("natural", 0),
        ("maybe", None),
        ("maybe", 0.1),
        ("many", ()),
        ("many", (1.0, 2.0)),
        ("pair", (1.0, 0.0)),
        ("one_or_many", 1.0),
        ("one_or_many", (0.0, 0.5, 1.0)),
        ("half_open", -1.0),
        ("between", 0.999),
        ("any_number", -1e308),
        ("free", -1.0),
        ("free", math.inf),  # without a bound nothing is checked
    ],
)
def test_a_value_within_bounds_is_taken_as_it_is(field: str, value: object) -> None:
    assert getattr(Everything(**{field: value}), field) is value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("positive", 0, "a number > 0"),
        ("positive", -0.0, "a number > 0"),
        ("non_negative", -1e-300, "a number ≥ 0"),
        ("probability", 1.5, "a number ≥ 0 and ≤ 1"),
        ("probability", -0.5, "a number ≥ 0 and ≤ 1"),
        ("count", 0, "a number ≥ 1"),
        ("natural", -1, "a number ≥ 0"),
        ("maybe", 0.0, "a number > 0"),
        ("many", (1.0, 2.0, 0.0), "a number > 0"),
        ("many", (-1.0, 2.0), "a number > 0"),
        ("pair", (0.0, 1.25), "a number ≥ 0 and ≤ 1"),
        ("one_or_many", 2.0, "a number ≥ 0 and ≤ 1"),
        ("one_or_many", (0.5, 2.0), "a number ≥ 0 and ≤ 1"),
        ("half_open", 1.0, "a number ≥ -1 and < 1"),
        ("between", -1.0, "a number > -1 and < 1"),
        ("between", 1.0, "a number > -1 and < 1"),
        ("any_number", math.inf, "a finite number"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_its_name_and_what_was_expected(
    field: str, value: object, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Everything(**{field: value})  # type: ignore[arg-type]
    assert caught.value.key == field
    assert str(caught.value).startswith(f"{field}: ")
    assert str(caught.value).endswith(f" is not {expected}")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["positive", "non_negative", "probability", "maybe", "any_number"])
def test_what_is_not_finite_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field}: {value} is not "):
        Everything(**{field: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="many: "):
        Everything(many=(1.0, value))


def test_frozen_or_not_and_inherited_or_not() -> None:
    with pytest.raises(ConfigError, match="rate: 0"):
        Mutable(0)
    with pytest.raises(ConfigError, match="count: 0"):
        More(count=0)
    with pytest.raises(ConfigError, match="extra: 0"):
        More(extra=0)
    assert More(count=2, extra=3).extra == 3


def test_an_error_seen_from_outside_carries_the_table() -> None:
    inner = ConfigError("0 is not a number > 0", key="eta")
    assert str(inner) == "eta: 0 is not a number > 0"
    outer = inner.within("algorithm").within("sweep")
    assert (outer.key, str(outer)) == ("sweep.algorithm.eta", "sweep.algorithm.eta: 0 is not a number > 0")
    assert str(ConfigError("nothing fits").within("world")) == "world: nothing fits"
    assert str(ConfigError("nothing fits")) == "nothing fits"


def test_one_base_for_all_that_a_user_can_mend() -> None:
    assert all(issubclass(e, OffbeatError) for e in (ConfigError, DataError, DivergenceError, RunFolderError))


def test_nearest_lists_the_names_and_points_at_a_close_one_only() -> None:
    names = ["dirichlet", "classes", "iid"]
    assert nearest("dirichlett", names) == "valid: dirichlet, classes, iid. Did you mean 'dirichlet'?"
    assert nearest("zzz", names) == "valid: dirichlet, classes, iid."
    assert nearest(7, iter(names)) == "valid: dirichlet, classes, iid."
