"""Named random streams: distributions by moments and quantiles, keys by distinctness and a golden value."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from offbeat.random import exponential, fold_in, fold_in_each, key, normal, stream, torch_stream, uniform, uniforms

N = 100_000
KEYS = [key(0, "moments", n) for n in range(N)]

# Integers are taken modulo 2^64 on purpose, so only those that differ there must have different keys.
PATHS = st.lists(st.integers(0, 2**64 - 1) | st.text(max_size=4), max_size=4).map(tuple)


def ecdf_distance(sample: NDArray[np.float64], cdf: Callable[[float], float]) -> float:
    """Kolmogorov and Smirnov's D: the largest distance between the sample's distribution and the law's."""
    theory = np.array([cdf(float(t)) for t in np.sort(sample)])
    n = len(sample)
    return float(max((np.arange(1, n + 1) / n - theory).max(), (theory - np.arange(n) / n).max()))


@pytest.mark.parametrize(
    ("draw", "cdf", "moments"),
    [
        (uniform, lambda t: t, (1 / 2, 1 / 3, 1 / 4, 1 / 5)),
        (normal, lambda t: (1 + math.erf(t / math.sqrt(2))) / 2, (0, 1, 0, 3)),
        (exponential, lambda t: 1 - math.exp(-t), (1, 2, 6, 24)),
    ],
    ids=["uniform", "normal", "exponential"],
)
def test_a_law_has_its_moments_and_its_distribution(
    draw: Callable[[int], float], cdf: Callable[[float], float], moments: tuple[float, ...]
) -> None:
    sample = np.array([draw(k) for k in KEYS])
    for power, moment in enumerate(moments, start=1):
        error = (sample**power).std() / math.sqrt(N)
        assert abs((sample**power).mean() - moment) < 4 * error, f"moment {power}"
    assert ecdf_distance(sample, cdf) < 1.95 / math.sqrt(N)  # exceeded once in a thousand samples of the true law


def test_uniform_stays_below_one_and_the_logarithms_stay_finite() -> None:
    sample = [uniform(k) for k in KEYS]
    assert min(sample) >= 0
    assert max(sample) < 1
    assert all(math.isfinite(normal(k)) and exponential(k) >= 0 for k in KEYS)


@given(st.integers(-(2**65), 2**65), st.integers(0, 40))
def test_many_uniform_numbers_at_once_are_the_same(k: int, count: int) -> None:
    assert uniforms(k, count) == [uniform(k + n) for n in range(count)]


@given(PATHS, st.integers(-(2**65), 2**65))
def test_keys_can_be_extended(path: tuple[int | str, ...], number: int) -> None:
    assert fold_in(key(*path), number) == key(*path, number)


@given(st.integers(-(2**65), 2**65), st.lists(st.integers(0, 2**62), min_size=1, max_size=5))
def test_many_keys_can_be_extended_at_once(k: int, numbers: list[int]) -> None:
    assert fold_in_each(k, np.array(numbers)).tolist() == [fold_in(k, n) for n in numbers]


def test_uniform_is_splitmix64() -> None:
    """The published first outputs of splitmix64 from the state 0, whose increment is the golden gamma."""
    assert uniform(0) == (0xE220A8397B1DCDAF >> 11) / 2**53
    assert uniform(0x9E3779B97F4A7C15) == (0x6E789E6AA1B965F4 >> 11) / 2**53


def test_neighboring_keys_are_not_correlated() -> None:
    """Clients and trips are numbered, so the keys of neighbors differ only in one small integer."""
    by_trip = np.array([uniform(k) for k in KEYS])
    by_client = np.array([uniform(key(0, "moments", n, 0)) for n in range(N)])
    for pair in ((by_trip[1:], by_trip[:-1]), (by_trip, by_client)):
        assert abs(np.corrcoef(*pair)[0, 1]) < 4 / math.sqrt(N)


def test_golden_key() -> None:
    """A change here changes all stored results."""
    k = key(0, "job", 3, 1)
    assert k == 7353330244527574667
    # Not exact: the last bit of a logarithm or a cosine belongs to the platform.
    assert (uniform(k), normal(k), exponential(k)) == pytest.approx(
        (0.5393592094137672, 1.2272201702613976, 0.7751367358418856), rel=1e-14
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", 1), (1, "a")),
        (("ab", "c"), ("a", "bc")),
        ((1, 2), (12,)),
        ((1, 2), (2, 1)),
        ((1,), ("1",)),
        ((0,), ()),
        ((0,), (0, 0)),
        (("",), ()),
        ((1,), (-1,)),
        ((1,), (1 << 32,)),
    ],
)
def test_paths_that_look_alike_have_different_keys(one: tuple[int | str, ...], other: tuple[int | str, ...]) -> None:
    assert key(*one) != key(*other)


@given(PATHS, PATHS)
@settings(max_examples=200, deadline=None)
def test_different_paths_have_different_keys(one: tuple[int | str, ...], other: tuple[int | str, ...]) -> None:
    assume(one != other)
    assert key(*one) != key(*other)
    assert 0 <= key(*one) < 2**64


def test_no_two_of_many_jobs_share_a_key() -> None:
    assert len({key(seed, "job", c, trip) for seed in range(5) for c in range(100) for trip in range(100)}) == 50_000


def test_a_stream_follows_from_its_path_alone() -> None:
    first = stream(3, "shuffle").random(5)
    torch_first = torch.rand(5, generator=torch_stream(3, "shuffle"))
    np.random.default_rng().random(3)
    torch.rand(3)  # neither library's own state must reach a named stream
    np.testing.assert_array_equal(stream(3, "shuffle").random(5), first)
    assert torch.equal(torch.rand(5, generator=torch_stream(3, "shuffle")), torch_first)
    assert (stream(4, "shuffle").random(5) != first).all()
    assert (torch.rand(5, generator=torch_stream(3, "init")) != torch_first).all()


def test_streams_leave_the_global_generators_alone() -> None:
    torch_before = torch.random.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    stream(0, "x").random(100)
    torch.rand(100, generator=torch_stream(0, "x"))
    assert torch.equal(torch.random.get_rng_state(), torch_before)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_before)  # type: ignore[index]  # noqa: NPY002
