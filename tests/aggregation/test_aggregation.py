"""Each aggregator against a plain NumPy transcription, and its behavior under wrong updates."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from offbeat.aggregation import AGGREGATORS, Aggregator, Clipped, Krum, Mean, Median, Private, TrimmedMean
from offbeat.aggregation.robust import norm, sort_rows
from offbeat.errors import ConfigError
from offbeat.vectors import BLOCK

Rows = NDArray[np.float64]
Vector = NDArray[np.float64]


def combined(
    aggregator: Aggregator, rows: Rows, scales: list[float] | None = None, updates: int | None = None
) -> Vector:
    """Return the aggregator's result for the rows, in double precision."""
    aggregator.start(torch.zeros(rows.shape[1], dtype=torch.float64), seed=3, updates=updates or len(rows))
    for client, row in enumerate(rows):
        aggregator.add(client, torch.from_numpy(row), scale=scales[client] if scales else 1.0)
    return np.asarray(aggregator.aggregate().numpy())


def trimmed_box(rows: Rows, k: int) -> Vector:
    """Yin et al., Definition 2."""
    return np.asarray(np.sort(rows, axis=0)[k : len(rows) - k].mean(axis=0))


def krum_box(rows: Rows, f: int, m: int) -> Vector:
    """Blanchard et al., section 4: s(i) = Σ_{i→j} ‖V_i − V_j‖² over the n − f − 2 closest; the m smallest."""
    n = len(rows)
    scores = []
    for i in range(n):
        distances = sorted(float(((rows[i] - rows[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(distances[: max(1, n - f - 2)]))
    return np.asarray(rows[np.argsort(scores, kind="stable")[:m]].mean(axis=0))


def clipped_box(rows: Rows, bound: float | None) -> Vector:
    norms = np.sqrt((rows**2).sum(axis=1))
    limit = float(np.median(norms)) if bound is None else bound
    return np.asarray(np.mean([row * min(1.0, limit / norm) for row, norm in zip(rows, norms, strict=True)], axis=0))


def normal(seed: int, m: int, d: int = 7) -> Rows:
    return np.random.default_rng(seed).standard_normal((m, d)) * np.random.default_rng(seed + 1).exponential(
        size=(m, 1)
    )


BOXES: dict[str, tuple[Callable[[], Aggregator], Callable[[Rows], Vector]]] = {
    "mean": (Mean, lambda rows: rows.mean(axis=0)),
    "median": (Median, lambda rows: np.median(rows, axis=0)),
    "trimmed-mean": (lambda: TrimmedMean(trim=0.2), lambda rows: trimmed_box(rows, -(-len(rows) // 5))),
    "trimmed-mean of one": (lambda: TrimmedMean(trim=1), lambda rows: trimmed_box(rows, 1)),
    "krum": (lambda: Krum(attackers=1), lambda rows: krum_box(rows, 1, 1)),
    "multi-krum": (lambda: Krum(attackers=0.25, select=3), lambda rows: krum_box(rows, -(-len(rows) // 4), 3)),
    "clipped": (lambda: Clipped(bound=0.8), lambda rows: clipped_box(rows, 0.8)),
    "clipped by median": (Clipped, lambda rows: clipped_box(rows, None)),
    "private": (
        lambda: Private(clip=0.8, noise_multiplier=0.0),
        lambda rows: clipped_box(rows, 0.8),
    ),
}
SIZES = st.integers(3, 17)
SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("name", BOXES)
@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, m=SIZES)
def test_box(name: str, seed: int, m: int) -> None:
    make, box = BOXES[name]
    rows = normal(seed, m)
    scales = [float(s) for s in np.random.default_rng(seed).uniform(0.1, 1.0, m)]
    np.testing.assert_allclose(combined(make(), rows), box(rows), rtol=0, atol=1e-12)
    scaled = rows * np.array(scales)[:, None]
    np.testing.assert_allclose(combined(make(), rows, scales), box(scaled), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", BOXES)
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, m=st.integers(7, 17))
def test_the_order_of_arrivals_does_not_matter(name: str, seed: int, m: int) -> None:
    """With fewer updates Krum uses a single neighbor, and two updates that are each other's nearest tie."""
    rows = normal(seed, m)
    other = rows[np.random.default_rng(seed).permutation(m)]
    make, _ = BOXES[name]
    np.testing.assert_allclose(combined(make(), rows), combined(make(), other), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "same",
    [
        TrimmedMean(trim=0),
        TrimmedMean(trim=0.0),
        Krum(attackers=0, select=9),
        Clipped(bound=1e300),
        Private(clip=1e300, noise_multiplier=0.0),
    ],
    ids=repr,
)
def test_aggregators_without_trimming_or_noise_are_the_mean(same: Aggregator) -> None:
    rows = normal(5, 9)
    np.testing.assert_allclose(combined(same, rows), rows.mean(axis=0), rtol=0, atol=1e-14)


def test_a_median_is_a_mean_trimmed_as_far_as_it_goes() -> None:
    for m in range(3, 10):
        rows = normal(m, m)
        assert np.array_equal(combined(Median(), rows), combined(TrimmedMean(trim=m), rows))


@pytest.mark.parametrize("m", range(1, 40))
def test_the_network_sorts(m: int) -> None:
    """Random bits would suffice by the zero-one principle; numbers serve as well."""
    rows = torch.from_numpy(normal(m, m, 50))
    assert torch.equal(torch.stack(sort_rows(list(rows))), rows.sort(dim=0).values)


@pytest.mark.parametrize("make", [Median, TrimmedMean, Krum, Clipped], ids=lambda kind: kind.__name__)
def test_long_vectors_go_by_blocks(make: Callable[[], Aggregator]) -> None:
    """The ends of a long vector are aggregated as they would be alone."""
    rows = normal(1, 6, 2 * BLOCK + 77)
    found = combined(make(), rows)
    box = {Median: BOXES["median"], TrimmedMean: BOXES["trimmed-mean"], Clipped: BOXES["clipped by median"]}
    expected = box[make][1](rows) if make in box else krum_box(rows, 2, 1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


# What wrong updates can do -------------------------------------------------------------------------------------------

OUTLIERS = st.lists(st.floats(-1e30, 1e30), min_size=5, max_size=5)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, f=st.integers(1, 4), extra=st.integers(0, 4), wrong=st.lists(OUTLIERS, min_size=4, max_size=4))
def test_breakdown(seed: int, f: int, extra: int, wrong: list[list[float]]) -> None:
    """f arbitrary updates among M ≥ 2f + 3."""
    honest = normal(seed, f + 3 + extra, 5)
    rows = np.concatenate([np.array(wrong[:f]), honest])
    low, high = honest.min(axis=0) - 1e-12, honest.max(axis=0) + 1e-12
    for aggregator in (Median(), TrimmedMean(trim=f)):
        v = combined(aggregator, rows)
        assert (low <= v).all()
        assert (v <= high).all()


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, f=st.integers(1, 4), extra=st.integers(0, 4), where=st.floats(3.0, 1e30))
def test_krum_selects_an_honest_update(seed: int, f: int, extra: int, where: float) -> None:
    """Colluding attackers fail as well: each has only f − 1 close neighbors and must count distant ones."""
    random = np.random.default_rng(seed)
    honest = random.uniform(-0.5, 0.5, (f + 3 + extra, 5))
    rows = np.concatenate([np.full((f, 5), where), honest])
    order = random.permutation(len(rows))
    v = combined(Krum(attackers=f), rows[order])
    assert any(np.array_equal(v, row) for row in honest)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, f=st.integers(1, 4), wrong=st.lists(OUTLIERS, min_size=4, max_size=4))
def test_a_clipped_mean_moves_by_the_bound_at_most(seed: int, f: int, wrong: list[list[float]]) -> None:
    honest = normal(seed, 6, 5)
    m = len(honest) + f
    without = combined(Clipped(bound=2.0), np.concatenate([np.zeros((f, 5)), honest]))
    moved = combined(Clipped(bound=2.0), np.concatenate([np.array(wrong[:f]), honest])) - without
    assert np.linalg.norm(moved) <= 2.0 * f / m * (1 + 1e-9)


def test_a_mean_breaks_down() -> None:
    """The tests above detect an aggregator that is not robust."""
    rows = np.concatenate([np.full((1, 5), 1e9), normal(0, 6, 5)])
    assert (combined(Mean(), rows) > 1e6).all()


def test_close_updates_far_from_zero_are_distinguished_in_single_precision() -> None:
    """Here ‖u_i − u_j‖² from a Gram matrix in single precision would consist of rounding errors."""
    center = torch.full((1000,), 100.0)
    offsets = [0.0, 0.01, -0.01, 0.02, 3.0]
    krum = Krum(attackers=1)
    krum.start(center)
    for client, offset in enumerate(offsets):
        krum.add(client, center + offset)
    exact = [krum_box(np.array([[100.0 + o] * 1000 for o in offsets]), 1, 1)[0]]
    assert krum.aggregate()[0] == pytest.approx(exact[0], abs=1e-5)


# How many updates a step ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aggregator", "updates", "message"),
    [
        (Median(), 2, "a median needs at least 3 updates per step, but the scheduler steps with 2"),
        (Clipped(), 1, "a median of norms needs at least 3"),
        (TrimmedMean(trim=2), 4, "trim = 2 at each end needs at least 5"),
        (TrimmedMean(trim=0.3), 2, "trim = 0.3 at each end needs at least 3"),
        (Krum(attackers=2), 6, r"Krum against 2 needs at least 7 updates per step \(2f \+ 3\)"),
        (Krum(attackers=0.2), 4, "Krum against 1 needs at least 5"),
        (Krum(attackers=0, select=6), 5, "select = 6 needs at least 6"),
        (Private(), None, "fixed number of updates per step"),
    ],
)
def test_too_few_updates_per_step_are_rejected(aggregator: Aggregator, updates: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        aggregator.check(updates)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_a_step_with_few_updates_still_makes_sense(name: str) -> None:
    """Where the number of updates varies, a step can have a single one."""
    aggregator = AGGREGATORS[name]() if name != "private" else Private(clip=100.0, noise_multiplier=0.0)
    for m in (1, 2):
        rows = normal(m, m)
        v = combined(aggregator, rows)
        assert (rows.min(axis=0) - 1e-12 <= v).all()
        assert (v <= rows.max(axis=0) + 1e-12).all()
    assert np.array_equal(combined(aggregator, np.zeros((5, 7))), np.zeros(7))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrimmedMean(trim=0.5), "trim: 0.5 is not a number ≥ 0 and < 0.5"),
        (lambda: Krum(attackers=-1), "attackers: -1 is not a number ≥ 0 and < 0.5"),
        (lambda: Clipped(bound=0), "bound: 0 is not a number > 0"),
        (lambda: Private(delta=0), "delta: 0 is not a number > 0 and < 1"),
        (lambda: Private(clip=math.inf), "clip: inf is not"),
    ],
)
def test_bounds_of_options(make: Callable[[], Aggregator], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


# Private noise --------------------------------------------------------------------------------------------------------


def test_noise_on_the_sum_has_the_configured_deviation() -> None:
    """200,000 draws: the sample's deviation is within 1 % by five of its own deviations."""
    rows = np.zeros((4, 200_000))
    v = combined(Private(clip=0.5, noise_multiplier=3.0), rows)
    assert v.std() * 4 == pytest.approx(3.0 * 0.5, rel=0.01)
    assert abs(v.mean()) < 5 * 3.0 * 0.5 / 4 / math.sqrt(200_000)


def test_the_divisor_is_fixed() -> None:
    """A step with two of five updates is still divided by five."""
    rows = normal(1, 2)
    v = combined(Private(clip=100.0, noise_multiplier=0.0), rows, updates=5)
    np.testing.assert_allclose(v, rows.sum(axis=0) / 5, rtol=1e-14)


@pytest.mark.parametrize("by_sum", [False, True])
def test_noise_follows_from_the_seed_the_step_and_optionally_the_sum(by_sum: bool) -> None:
    def steps(seed: int, *sums: float) -> list[NDArray[np.float64]]:
        aggregator = Private(noise_multiplier=1.0)
        aggregator.by_sum = by_sum
        aggregator.start(torch.zeros(50, dtype=torch.float64), seed, updates=1)
        found = []
        for value in sums:
            u = torch.full((50,), value, dtype=torch.float64)
            aggregator.add(0, u)
            found.append((aggregator.aggregate() - u).numpy())  # the noise alone, up to rounding
        return found

    one, two = steps(1, 0.01, 0.01)
    assert np.array_equal(steps(1, 0.01)[0], one)
    assert np.allclose(steps(1, 0.02)[0], one, rtol=0, atol=1e-14) != by_sum
    for other in (two, steps(2, 0.01)[0], *([steps(1, 0.02)[0]] if by_sum else [])):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.6
        assert np.abs(one - other).max() > 0.5


def test_the_privacy_budget_a_client_spent() -> None:
    """n updates of a client in one step move the sum n times as far, so n² counts."""
    aggregator = Private(noise_multiplier=1.0)
    aggregator.start(torch.zeros(3), updates=3)
    for step in ([0, 1, 2], [0, 0, 1], [3, 1, 1], [1, 4, 5]):
        for client in step:
            aggregator.add(client, torch.ones(3))
        aggregator.aggregate()
    assert aggregator.squares == {0: 1 + 4, 1: 1 + 1 + 4 + 1, 2: 1, 3: 1, 4: 1, 5: 1}
    assert aggregator.spent == 7


def test_lengths_of_long_vectors_are_exact_enough() -> None:
    v = torch.rand(3_000_000, generator=torch.Generator().manual_seed(0))
    exact = float(v.double().norm())
    assert float(norm(v)) == pytest.approx(exact, rel=1e-6)
