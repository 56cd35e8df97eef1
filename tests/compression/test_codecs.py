"""The contract of every codec: the simulator's result compared with the bytes that would travel."""

from __future__ import annotations

import pytest
import torch
from tests.support.codecs import EVERYWHERE, LAYOUTS, decoded, flat, normal, vectors

from offbeat.compression import CODECS, QSGD, Codec, Compression, RandomK, Raw, Sign, TopK, Uniform
from offbeat.random import key
from offbeat.vectors import Layout

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
RATES = (None, 0.01, 0.25, 0.37, 1.0)
RANDOM = (RandomK, QSGD, Uniform)


def test_every_codec_is_tested() -> None:
    assert {type(codec) for codec in VARIANTS} == set(CODECS.values())
    assert list(CODECS) == ["none", "top-k", "random-k", "qsgd", "sign", "uniform"]
    default = Compression()
    assert (default.upload, default.download, default.error_feedback) == (Raw(), Raw(), False)


# --- what travels


@EVERYWHERE
@EVERY
def test_decoding_equals_carrying_and_the_size_is_known_in_advance(codec: Codec, where: Layout) -> None:
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
def test_the_result_of_carrying_owns_its_memory(codec: Codec) -> None:
    """All codecs except the plain one, which returns the vector itself, since updates never change in place."""
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


def test_a_jobs_rate_overrides_that_of_the_codec() -> None:
    for kind in (TopK, RandomK):
        own, other = kind(rate=0.5), kind(rate=0.25)
        x, where = normal(80), flat(80)
        assert own.size(where, 0.25) == other.size(where) < own.size(where)
        assert torch.equal(own.carry(x, where, 1, 0.25), other.carry(x, where, 1))
        assert torch.equal(decoded(own, x, where, 1, 0.25), decoded(other, x, where, 1))
