"""Codecs: what the simulator computes against the very bytes that would travel, and against theory."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from torch import Tensor

from offbeat.compression import CODECS, QSGD, Codec, Compression, RandomK, Raw, Sign, TopK, Uniform
from offbeat.errors import ConfigError
from offbeat.seeds import key
from offbeat.vector import Layout


def layout(*shapes: tuple[int, ...]) -> Layout:
    return Layout(tuple(f"p{n}" for n in range(len(shapes))), tuple(torch.Size(shape) for shape in shapes))


def flat(dim: int) -> Layout:
    return layout((dim,))


LAYOUTS = {
    "one": flat(1),
    "three": flat(3),
    "matrix and bias": layout((4, 5), (5,)),
    "single entries": layout((1,), (7, 2), (), (1, 1), (9,)),
    "only single entries": layout((1,), (), (1,)),
    "odd": flat(67),
    "larger": layout((40, 25), (25,), (3, 3, 5, 5)),
}
VARIANTS: list[Codec] = [
    Raw(),
    TopK(),
    TopK(rate=0.01),
    TopK(rate=0.4),
    TopK(rate=1.0),
    TopK(scope="global"),
    TopK(rate=0.01, scope="global"),
    TopK(rate=0.4, scope="global"),
    RandomK(),
    RandomK(rate=0.4),
    RandomK(rate=1.0),
    RandomK(rate=0.4, unbiased=False),
    QSGD(),
    QSGD(bits=4),
    QSGD(bits=2),
    Sign(),
    Uniform(),
    Uniform(bits=4),
    Uniform(bits=2),
]
EVERY = pytest.mark.parametrize("codec", VARIANTS, ids=repr)
EVERYWHERE = pytest.mark.parametrize("where", LAYOUTS.values(), ids=LAYOUTS)
RATES = (None, 0.01, 0.25, 0.37, 1.0)
RANDOM = (RandomK, QSGD, Uniform)


def normal(dim: int, seed: int = 0) -> Tensor:
    return torch.randn(dim, generator=torch.Generator().manual_seed(seed))


def vectors(dim: int) -> dict[str, Tensor]:
    x = normal(dim)
    return {
        "normal": x,
        "zero": torch.zeros(dim),
        "constant": torch.full((dim,), 0.3),
        "negative constant": torch.full((dim,), -7.7),
        "one entry": torch.zeros(dim).index_fill(0, torch.tensor([dim // 2]), -3.0),
        "huge": 1e15 * x,
        "small": 1e-15 * x,
        "from huge to small": x * 10 ** torch.linspace(-12, 12, dim),
        "far from zero": 1e6 + x,
        "ties": torch.arange(dim).remainder(3).float() - 1,
    }


def decoded(codec: Codec, x: Tensor, where: Layout, seed: int, rate: float | None = None) -> Tensor:
    return codec.decode(codec.encode(x, where, seed, rate), where)


def test_every_codec_is_tested() -> None:
    assert {type(codec) for codec in VARIANTS} == set(CODECS.values())
    assert list(CODECS) == ["none", "top-k", "random-k", "qsgd", "sign", "uniform"]
    default = Compression()
    assert (default.upload, default.download, default.error_feedback) == (Raw(), Raw(), False)


# --- what travels


@EVERYWHERE
@EVERY
def test_what_is_decoded_is_what_was_carried_and_the_size_is_known_ahead(codec: Codec, where: Layout) -> None:
    for name, x in vectors(where.dim).items():
        for rate in RATES if isinstance(codec, (TopK, RandomK)) else RATES[:2]:
            for seed in (1, key("job", 5), 2**64 - 1) if rate is None else (0,):
                payload = codec.encode(x, where, seed, rate)
                carried = codec.carry(x, where, seed, rate)
                assert torch.equal(codec.decode(payload, where), carried), (name, rate, seed)
                assert len(payload) == codec.size(where, rate), (name, rate, seed)
                assert carried.isfinite().all(), (name, rate, seed)


@EVERY
def test_carrying_changes_nothing_and_keeps_shape_and_dtype(codec: Codec) -> None:
    where = LAYOUTS["single entries"]
    for x in vectors(where.dim).values():
        for dtype in (torch.float32, torch.float64):
            given = x.to(dtype, copy=True)
            before = given.clone()
            carried = codec.carry(given, where, 3)
            codec.encode(given, where, 3)
            assert torch.equal(given, before)
            assert (carried.shape, carried.dtype) == (given.shape, dtype)


@EVERY
def test_what_was_carried_has_its_own_memory(codec: Codec) -> None:
    """All but the plain one, which carries the vector itself: nobody changes an update in place."""
    x = normal(12)
    assert (codec.carry(x, flat(12), 0).data_ptr() == x.data_ptr()) == isinstance(codec, Raw)


@EVERY
def test_the_seed_decides(codec: Codec) -> None:
    where, x = LAYOUTS["larger"], normal(LAYOUTS["larger"].dim)
    once, again, other = (codec.carry(x, where, seed) for seed in (key("a"), key("a"), key("b")))
    assert torch.equal(once, again)
    assert codec.encode(x, where, key("a")) == codec.encode(x, where, key("a"))
    whole = isinstance(codec, RandomK) and codec.rate == 1
    assert torch.equal(once, other) == (not isinstance(codec, RANDOM) or whole)


@EVERY
def test_carrying_leaves_the_random_state_of_torch_alone(codec: Codec) -> None:
    before = torch.get_rng_state()
    codec.carry(normal(20), flat(20), 0)
    assert torch.equal(torch.get_rng_state(), before)


@EVERY
def test_a_zero_vector_stays_zero(codec: Codec) -> None:
    for where in LAYOUTS.values():
        assert not codec.carry(torch.zeros(where.dim), where, 0).any()


@pytest.mark.parametrize("codec", [TopK(), TopK(scope="global"), QSGD(), QSGD(bits=2), Sign(), Uniform(), Raw()])
@pytest.mark.parametrize("value", [1.0, -0.3, 1e15, -1e-15])
def test_a_vector_of_one_entry_comes_through(codec: Codec, value: float) -> None:
    carried = codec.carry(torch.tensor([value]), flat(1), 0).item()
    assert carried == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("codec", [Raw(), TopK(rate=1.0), RandomK(rate=1.0), Sign(), Uniform(bits=2), Uniform()])
@pytest.mark.parametrize("value", [0.3, -7.7, 1e15])
def test_a_constant_vector_comes_through(codec: Codec, value: float) -> None:
    x = torch.full((13,), value)
    torch.testing.assert_close(codec.carry(x, flat(13), 0), x, rtol=1e-6, atol=0)


@pytest.mark.parametrize("codec", [c for c in VARIANTS if not isinstance(c, QSGD)], ids=repr)
@pytest.mark.parametrize("scale", [2.0**60, 2.0**-60])
def test_the_scale_does_not_matter(codec: Codec, scale: float) -> None:
    x = normal(67)
    torch.testing.assert_close(
        codec.carry(x * scale, flat(67), 5), codec.carry(x, flat(67), 5) * scale, rtol=1e-6, atol=0
    )


# --- sizes by hand


@pytest.mark.parametrize(
    ("codec", "dim", "size"),
    [
        (Raw(), 100, 400),
        (TopK(rate=0.25), 100, 5 + 100 + 13),  # 25 values; the bitmap of 13 bytes is shorter than 100
        (TopK(rate=0.01), 100, 5 + 4 + 4),  # one value and one index
        (RandomK(rate=0.25), 100, 8 + 100),
        (QSGD(bits=8), 101, 8 + 101),
        (QSGD(bits=4), 101, 8 + 51),
        (QSGD(bits=2), 101, 8 + 26),
        (Sign(), 101, 8 + 13),
        (Uniform(bits=8), 101, 16 + 101),
        (Uniform(bits=4), 101, 16 + 51),
        (Uniform(bits=2), 101, 16 + 26),
    ],
    ids=repr,
)
def test_sizes_by_hand(codec: Codec, dim: int, size: int) -> None:
    assert codec.size(flat(dim)) == size


def test_a_rate_given_goes_before_the_codec_s_own() -> None:
    for kind in (TopK, RandomK):
        own, other = kind(rate=0.5), kind(rate=0.25)
        x, where = normal(80), flat(80)
        assert own.size(where, 0.25) == other.size(where) < own.size(where)
        assert torch.equal(own.carry(x, where, 1, 0.25), other.carry(x, where, 1))
        assert torch.equal(decoded(own, x, where, 1, 0.25), decoded(other, x, where, 1))


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


def test_so_many_entries_travel_and_are_scaled() -> None:
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
    """An entry that is the whole norm stands on the highest level."""
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
    """‖x − C(x)‖² = ‖x‖² − ‖x‖₁²/d: the scale is the best one there is."""
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
