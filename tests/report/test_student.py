"""Student's t distribution, the sign test and Holm's correction, against closed forms, tables and SciPy."""

from __future__ import annotations

import math

import pytest

from offbeat.report.student import critical, holm, sign_test, two_sided


@pytest.mark.parametrize("t", [0.0, 1e-8, 0.3, 1.0, 2.5, 40.0, 1e6])
def test_one_and_two_degrees_of_freedom_have_closed_forms(t: float) -> None:
    assert two_sided(t, 1) == pytest.approx(2 / math.pi * math.atan2(1, t), rel=1e-12)
    root = math.sqrt(2 + t * t)
    assert two_sided(-t, 2) == pytest.approx(2 / (root * (root + t)), rel=1e-12)


@pytest.mark.parametrize(
    ("freedom", "confidence", "table"),
    [(1, 0.95, 12.706), (4, 0.95, 2.776), (9, 0.95, 2.262), (9, 0.99, 3.250), (30, 0.9, 1.697), (1000, 0.95, 1.962)],
)
def test_critical_values_are_those_of_printed_tables(freedom: int, confidence: float, table: float) -> None:
    assert round(critical(confidence, freedom), 3) == table


def test_values_agree_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for freedom in (1, 2, 3, 4, 7, 19, 99, 5000):
        for t in (1e-9, 0.01, 0.5, 1.0, 1.96, 3.0, 8.0, 30.0):
            assert two_sided(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-9)
        for confidence in (0.01, 0.5, 0.9, 0.95, 0.999, 1 - 1e-9):
            wanted = stats.t.isf((1 - confidence) / 2, freedom)
            assert critical(confidence, freedom) == pytest.approx(wanted, rel=1e-7)


def test_the_sign_test_is_exact() -> None:
    assert sign_test(5, 0) == 2 / 32
    assert sign_test(0, 6) == 2 / 64
    assert sign_test(8, 2) == pytest.approx(2 * (1 + 10 + 45) / 1024)
    assert sign_test(3, 3) == sign_test(0, 0) == 1.0


def test_holm_multiplies_by_the_number_of_larger_values() -> None:
    adjusted = holm([0.01, 0.04, None, 0.03, 0.005])
    assert adjusted == [pytest.approx(0.03), pytest.approx(0.06), None, pytest.approx(0.06), pytest.approx(0.02)]
    assert holm([0.4, 0.9]) == [0.8, 0.9]
    assert holm([0.7, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
