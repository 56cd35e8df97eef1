"""Validation of hyperparameters and the messages for invalid values."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from offbeat.errors import ConfigError, DataError, DivergenceError, OffbeatError, RunFolderError, nearest
from offbeat.options import Finite, Interval, NonNegative, NonNegativeInt, Options, Positive, PositiveInt, Probability


@dataclass
class Mutable(Options):
    rate: Positive


@dataclass(kw_only=True, frozen=True)
class Everything(Options):
    positive: Positive = 1.0
    non_negative: NonNegative = 0.0
    probability: Probability = 0.5
    count: PositiveInt = 1
    natural: NonNegativeInt = 0
    maybe: Positive | None = None
    many: tuple[Positive, ...] = ()
    pair: tuple[Probability, Probability] = (0.0, 1.0)
    one_or_many: Probability | tuple[Probability, ...] = 0.5
    half_open: Annotated[float, Interval(ge=-1, lt=1)] = 0.0
    between: Annotated[float, Interval(gt=-1, lt=1)] = 0.0
    any_number: Finite = 0.0
    free: float = 0.0
    name: str = "x"
    choice: Literal["a", "b"] = "a"
    mapping: Mapping[str, Any] = field(default_factory=dict)
    nested: Mutable | None = None


@dataclass(kw_only=True, frozen=True)
class More(Everything):
    """Options with inherited fields and one of its own."""

    extra: PositiveInt = 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("positive", 5e-324),
        ("positive", 1e308),
        ("positive", 3),  # an integer is a valid number
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
        ("free", math.inf),  # without a bound, infinities are valid
    ],
)
def test_a_value_within_bounds_is_accepted(field: str, value: object) -> None:
    assert getattr(Everything(**{field: value}), field) == value  # type: ignore[arg-type]


def test_numbers_are_normalized() -> None:
    """An integer for a float, a NumPy scalar and a list give the same object as their plain counterparts."""
    given = Everything(positive=3, count=np.int64(7), probability=np.float32(0.5), many=[1, np.float64(2.0)])  # type: ignore[arg-type]
    assert given == Everything(positive=3.0, count=7, probability=0.5, many=(1.0, 2.0))
    assert [type(value) for value in (given.positive, given.count, given.probability)] == [float, int, float]
    assert [type(value) for value in given.many] == [float, float]


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("positive", "1", "positive: '1' is not a number > 0"),
        ("positive", True, "positive: True is not a number > 0"),
        ("count", True, "count: True is not an integer ≥ 1"),
        ("count", 1.0, "count: 1.0 is not an integer ≥ 1"),
        ("name", 3, "name: 3 is not a string"),
        ("many", 1.0, "many: 1.0 is not a list of numbers > 0"),
        ("many", (1.0, "2"), "many: '2' is not a number > 0"),
        ("pair", (0.5,), "pair: (0.5,) is not a list of 2 numbers ≥ 0 and ≤ 1"),
        ("pair", (0.5, 0.5, 0.5), "pair: (0.5, 0.5, 0.5) is not a list of 2 numbers ≥ 0 and ≤ 1"),
        ("one_or_many", (0.5, None), "one_or_many: None is not a number ≥ 0 and ≤ 1"),
        ("choice", "c", "choice: 'c' is not one of 'a', 'b'"),
        ("nested", 3, "nested: 3 is not a Mutable"),
    ],
)
def test_nothing_is_coerced(field: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Everything(**{field: value})  # type: ignore[arg-type]
    assert str(caught.value) == expected


def test_objects_are_neither_copied_nor_validated_again() -> None:
    mapping, nested = {"a": [1]}, Mutable(1.0)
    everything = Everything(mapping=mapping, nested=nested)
    assert everything.mapping is mapping
    assert everything.nested is nested


def test_options_work_without_pydantic() -> None:
    """A GPU machine may have torch and NumPy alone; bounds are then not checked."""
    code = """
import sys
sys.modules["pydantic"] = sys.modules["annotated_types"] = None
import offbeat.algorithms, offbeat.environment, offbeat.scheduling
from offbeat.algorithms import FedBuff
assert FedBuff(eta=-1).eta == -1
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("positive", 0, "a number > 0"),
        ("positive", -0.0, "a number > 0"),
        ("non_negative", -1e-300, "a number ≥ 0"),
        ("probability", 1.5, "a number ≥ 0 and ≤ 1"),
        ("probability", -0.5, "a number ≥ 0 and ≤ 1"),
        ("count", 0, "an integer ≥ 1"),
        ("natural", -1, "an integer ≥ 0"),
        ("maybe", 0.0, "a number > 0"),
        ("many", (1.0, 2.0, 0.0), "a number > 0"),
        ("many", (-1.0, 2.0), "a number > 0"),
        ("pair", (0.0, 1.25), "a number ≥ 0 and ≤ 1"),
        ("one_or_many", 2.0, "a number ≥ 0 and ≤ 1 or a list of them"),
        ("one_or_many", (0.5, 2.0), "a number ≥ 0 and ≤ 1"),
        ("half_open", 1.0, "a number ≥ -1 and < 1"),
        ("between", -1.0, "a number > -1 and < 1"),
        ("between", 1.0, "a number > -1 and < 1"),
        ("any_number", math.inf, "a finite number"),
    ],
)
def test_a_value_out_of_bounds_is_rejected_with_its_name_and_the_valid_values(
    field: str, value: object, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Everything(**{field: value})  # type: ignore[arg-type]
    assert caught.value.key == field
    assert str(caught.value).startswith(f"{field}: ")
    assert str(caught.value).endswith(f" is not {expected}")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["positive", "non_negative", "probability", "maybe", "any_number"])
def test_non_finite_numbers_are_rejected(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field}: {value} is not "):
        Everything(**{field: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="many: "):
        Everything(many=(1.0, value))


def test_frozen_mutable_and_inherited_options_are_validated() -> None:
    with pytest.raises(ConfigError, match="rate: 0"):
        Mutable(0)
    with pytest.raises(ConfigError, match="count: 0"):
        More(count=0)
    with pytest.raises(ConfigError, match="extra: 0"):
        More(extra=0)
    assert More(count=2, extra=3).extra == 3


def test_within_prefixes_the_table() -> None:
    inner = ConfigError("0 is not a number > 0", key="eta")
    assert str(inner) == "eta: 0 is not a number > 0"
    outer = inner.within("algorithm").within("sweep")
    assert (outer.key, str(outer)) == ("sweep.algorithm.eta", "sweep.algorithm.eta: 0 is not a number > 0")
    assert str(ConfigError("nothing fits").within("environment")) == "environment: nothing fits"
    assert str(ConfigError("nothing fits")) == "nothing fits"


def test_all_errors_share_one_base_class() -> None:
    assert all(issubclass(e, OffbeatError) for e in (ConfigError, DataError, DivergenceError, RunFolderError))


def test_nearest_lists_the_names_and_points_at_a_close_one_only() -> None:
    names = ["dirichlet", "classes", "iid"]
    assert nearest("dirichlett", names) == "valid: dirichlet, classes, iid. Did you mean 'dirichlet'?"
    assert nearest("zzz", names) == "valid: dirichlet, classes, iid."
    assert nearest(7, iter(names)) == "valid: dirichlet, classes, iid."
