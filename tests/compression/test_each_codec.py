"""Each codec by hand and compared with theory."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from tests.support.codecs import EVERYWHERE, LAYOUTS, decoded, flat, layout, normal, vectors

from offbeat.compression import QSGD, Codec, RandomK, Sign, TopK, Uniform
from offbeat.errors import ConfigError
from offbeat.random import key
from offbeat.vectors import Layout

# --- top-k


def kept(codec: TopK, x: list[float], where: Layout) -> list[float]:
    return codec.carry(torch.tensor(x), where, 0).tolist()


def test_the_largest_by_hand() -> None:
    x, where = [3.0, -5.0, 4.0, 0.5, -2.0, 1.0], layout((2, 2), (2,))
    assert kept(TopK(rate=0.5), x, where) == [0, -5, 4, 0, -2, 0], "two of four and one of two"
    assert kept(TopK(rate=0.5, scope="global"), x, where) == [3, -5, 4, 0, 0, 0], "three of six"
    assert kept(TopK(rate=0.25), x, where) == [0, -5, 0, 0, -2, 0], "at least one of every tensor"
    assert kept(TopK(rate=0.25, scope="global"), x, where) == [0, -5, 4, 0, 0, 0], "1.5 is rounded up"


def test_of_a_tensor_with_one_entry_it_always_travels() -> None:
    x, where = [0.125, 5.0, -6.0, 7.0, 0.25], layout((1,), (3,), ())
    assert kept(TopK(rate=0.01), x, where) == [0.125, 0, 0, 7, 0.25]
    assert kept(TopK(rate=0.01, scope="global"), x, where) == [0, 0, 0, 7, 0]


@EVERYWHERE
@pytest.mark.parametrize("scope", ["tensor", "global"])
@pytest.mark.parametrize("rate", [0.01, 0.4])
def test_no_entry_that_is_left_is_larger_than_one_that_travels(scope: str, rate: float, where: Layout) -> None:
    codec, x = TopK(rate=rate, scope=scope), normal(where.dim)  # type: ignore[arg-type]
    carried = codec.carry(x, where, 0)
    sizes = where.sizes if scope == "tensor" else [where.dim]
    for part, original in zip(torch.split(carried, sizes), torch.split(x, sizes), strict=True):
        travels = part != 0
        k, n = int(travels.sum()), len(part)
        assert k == math.ceil(rate * n)
        assert torch.equal(part[travels], original[travels])
        if k < n:
            assert original[travels].abs().min() >= original[~travels].abs().max()
        # The contraction on which every proof for top-k rests: ‖x − C(x)‖² ≤ (1 − k/n)‖x‖².
        assert (original - part).square().sum() <= (1 - k / n) * original.square().sum() * (1 + 1e-6)


@pytest.mark.parametrize("scope", ["tensor", "global"])
def test_at_rate_one_it_is_the_identity(scope: str) -> None:
    codec = TopK(rate=1.0, scope=scope)  # type: ignore[arg-type]
    for where in LAYOUTS.values():
        for x in vectors(where.dim).values():
            assert torch.equal(codec.carry(x, where, 0), x)
            assert torch.equal(decoded(codec, x, where, 0), x)
            assert torch.equal(TopK().carry(x, where, 0, 1.0), x)


def test_the_bitmap_travels_exactly_when_it_is_shorter() -> None:
    """k four-byte indices against ⌈d/8⌉ bytes."""
    seen = set()
    for dim in (1, 8, 31, 32, 33, 64, 65, 320, 1000):
        for k in sorted({1, 2, 3, dim // 32, dim // 32 + 1, dim // 2, dim} & set(range(1, dim + 1))):
            codec = TopK(rate=k / dim, scope="global")
            count, bitmap = struct.unpack_from("<IB", codec.encode(normal(dim), flat(dim), 0))
            assert count == k
            assert bitmap == (math.ceil(dim / 8) < 4 * k), (dim, k)
            assert codec.size(flat(dim)) == 5 + 4 * k + min(4 * k, math.ceil(dim / 8))
            seen.add((bitmap, math.ceil(dim / 8) == 4 * k))
    assert seen == {(0, False), (0, True), (1, False)}, "the tie was there too"


# --- random-k


def test_random_k_sends_k_entries_and_scales_them() -> None:
    x = normal(100).abs() + 1
    for rate, k in ((0.01, 1), (0.25, 25), (0.991, 100), (1.0, 100)):
        carried = RandomK(rate=rate).carry(x, flat(100), 7)
        assert int((carried != 0).sum()) == k
        torch.testing.assert_close(carried[carried != 0], (x * 100 / k)[carried != 0], rtol=1e-6, atol=0)
        plain = RandomK(rate=rate, unbiased=False).carry(x, flat(100), 7)
        assert torch.equal(plain[plain != 0], x[plain != 0])
        assert torch.equal(plain != 0, carried != 0), "the same positions from the same seed"


def test_random_k_without_scaling_is_a_contraction() -> None:
    """The share of ‖x‖² that is lost is 1 − k/d on average."""
    x, codec = normal(40), RandomK(rate=0.25, unbiased=False)
    lost = torch.stack([(x - codec.carry(x, flat(40), seed)).square().sum() for seed in range(4000)])
    share = lost / x.square().sum()
    assert lost.max() <= x.square().sum()
    assert abs(share.mean() - 0.75) < 5 * share.std() / 4000**0.5


# --- unbiased codecs


@pytest.mark.parametrize(
    "codec",
    [RandomK(), RandomK(rate=0.4), QSGD(), QSGD(bits=4), QSGD(bits=2), Uniform(), Uniform(bits=4), Uniform(bits=2)],
    ids=repr,
)
@pytest.mark.parametrize("name", ["normal", "ties"])
def test_the_mean_is_right(codec: Codec, name: str) -> None:
    dim, count = 20, 1500
    x = vectors(dim)[name]
    draws = torch.stack([codec.carry(x, flat(dim), key("draw", n)) for n in range(count)]).double()
    error = (draws.mean(dim=0) - x).abs()
    assert (error <= 5 * draws.std(dim=0) / count**0.5 + 1e-6).all()


def test_the_variance_of_random_k_is_its_theory_s() -> None:
    """E‖C(x) − x‖² = (d/k − 1)‖x‖²."""
    x, codec = normal(20), RandomK(rate=0.25)
    off = torch.stack([(codec.carry(x, flat(20), n) - x).square().sum() for n in range(4000)])
    assert abs(off.mean() - 3 * x.square().sum()) < 5 * off.std() / 4000**0.5


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_qsgd_is_within_its_bounds(bits: int) -> None:
    """Every entry is off by less than a level, ‖x‖/s; E‖Q(x) − x‖² ≤ min(d/s², √d/s)‖x‖² (Lemma 3.1)."""
    codec, dim = QSGD(bits=bits), 64  # type: ignore[arg-type]
    s = 2 ** (bits - 1) - 1
    x = normal(dim)
    norm = x.norm()
    off = []
    for n in range(500):
        carried = codec.carry(x, flat(dim), n)
        assert (carried - x).abs().max() <= norm / s * (1 + 1e-5)
        levels = carried * s / norm
        torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-3)
        assert (carried * x >= 0).all(), "the sign is never wrong"
        off.append((carried - x).square().sum())
    assert torch.stack(off).mean() <= min(dim / s**2, dim**0.5 / s) * norm**2


def test_qsgd_of_a_single_direction_is_exact() -> None:
    """An entry that is the whole norm is on the highest level."""
    for bits in (8, 4, 2):
        x = vectors(9)["one entry"]
        carried = QSGD(bits=bits).carry(x, flat(9), 3)
        torch.testing.assert_close(carried, x, rtol=1e-6, atol=0)


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("name", ["normal", "huge", "small", "far from zero", "from huge to small"])
def test_uniform_is_off_by_less_than_a_level_and_stays_in_range(bits: int, name: str) -> None:
    x = vectors(67)[name]
    u = (x.max() - x.min()) / (2**bits - 1)
    rounding = 1e-6 * x.abs().max()
    for seed in range(50):
        carried = Uniform(bits=bits).carry(x, flat(67), seed)  # type: ignore[arg-type]
        assert (carried - x).abs().max() <= u + rounding
        assert x.min() - rounding <= carried.min()
        assert carried.max() <= x.max() + rounding
        assert len(set(carried.tolist())) <= 2**bits


# --- sign


def test_sign_by_hand() -> None:
    """(3 + 1 + 0 + 4)/4 = 2, and zero counts as positive."""
    x = torch.tensor([3.0, -1.0, 0.0, -4.0])
    assert Sign().carry(x, flat(4), 0).tolist() == [2, -2, 2, -2]
    assert decoded(Sign(), x, flat(4), 0).tolist() == [2, -2, 2, -2]


def test_sign_keeps_the_mean_size_and_is_a_contraction() -> None:
    """‖x − C(x)‖² = ‖x‖² − ‖x‖₁²/d: no other scale has a smaller error."""
    x = normal(67).double()
    carried = Sign().carry(x, flat(67), 0)
    torch.testing.assert_close(carried.abs().sum(), x.abs().sum(), rtol=1e-12, atol=0)
    best = x.square().sum() - x.abs().sum() ** 2 / 67
    torch.testing.assert_close((x - carried).square().sum(), best, rtol=1e-10, atol=0)


# --- options


@pytest.mark.parametrize("kind", [TopK, RandomK])
@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1])
def test_bounds(kind: type[Codec], rate: float) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(rate=rate)  # type: ignore[call-arg]
    assert caught.value.key == "rate"


# --- found and not mended yet


@pytest.mark.parametrize("scale", [1e25, 1e-25])
def test_qsgd_of_very_large_and_very_small_vectors(scale: float) -> None:
    x = torch.tensor([1.0, -1.0, 0.5, 0.25]) * scale
    carried = QSGD().carry(x, flat(4), 0)
    assert (carried - x).abs().max() <= 1.6 * scale / 127


@pytest.mark.parametrize(("rate", "k"), [(0.07, 7), (0.14, 14), (0.28, 28), (0.55, 55)])
def test_a_whole_number_of_entries_is_not_rounded_up(rate: float, k: int) -> None:
    assert TopK(rate=rate).counts(flat(100), None) == [k]
    assert RandomK(rate=rate).count(flat(100), None) == k
