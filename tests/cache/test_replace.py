"""Replacement of many entries in one pass compared with one after the other, and no waiting for the device."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from offbeat.algorithms import ALGORITHMS, Algorithm
from offbeat.cache import ClientSide, Dense, Disk, Quantized, UpdateCache
from offbeat.compression.bits import PIECE, dequantize, quantize
from offbeat.compression.dense import QSGD, Sign, Uniform
from offbeat.messages import Job, Update
from offbeat.random import torch_stream
from offbeat.vectors import BLOCK, Layout, blocks, empty_hugepages_like

MAKE: dict[str, Callable[[], UpdateCache]] = {
    "dense": Dense, "client-side": ClientSide, "disk": Disk,
    "8 bit": lambda: Quantized(bits=8), "4 bit": lambda: Quantized(bits=4), "2 bit": lambda: Quantized(bits=2),
    "nearest": lambda: Quantized(bits=2, levels=3, rounding="nearest"), "by tensor": lambda: Quantized(range="tensor"),
}  # fmt: skip
EVERY = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
LENGTHS = pytest.mark.parametrize("dim", [1, 7, 1000, BLOCK - 1, BLOCK, 2 * BLOCK + 13])
CLIENTS = 6


def tensors(dim: int) -> Layout:
    """Return the layout of a model whose second tensor is small and whose last one is empty."""
    sizes = (dim // 3, min(dim - dim // 3, 2), max(0, dim - dim // 3 - 2), 0)
    return Layout(tuple("abcd"), tuple(torch.Size([size]) for size in sizes))


def histories(dim: int) -> list[list[tuple[int, Tensor]]]:
    """Return steps with new and known clients, a single client, and clients with two and three updates."""
    rng = torch.Generator().manual_seed(dim)
    who = [[0, 1, 2], [1, 3], [2], [4, 0, 4, 1], [5, 5, 5, 2]]
    return [[(i, torch.randn(dim, generator=rng)) for i in clients] for clients in who]


@EVERY
@LENGTHS
def test_replacing_is_reading_the_mean_and_the_differences_and_then_storing(
    make: Callable[[], UpdateCache], dim: int
) -> None:
    at_once, one_by_one = make(), make()
    for cache in (at_once, one_by_one):
        cache.use_layout(tensors(dim))
        cache.start(torch.zeros(dim), CLIENTS)
    for round_, fresh in enumerate(histories(dim)):
        mean = one_by_one.mean
        differences = [one_by_one.difference(i, value) for i, value in fresh]
        h, summed = at_once.replace(fresh, lambda place, first=10 * round_: first + place)  # type: ignore[misc]
        for place, (i, value) in enumerate(fresh):
            one_by_one.store(i, value, 10 * round_ + place)
        # Sums of up to four numbers of size one in single precision, in another order.
        torch.testing.assert_close(h, mean, rtol=0, atol=1e-6)
        torch.testing.assert_close(summed, torch.stack(differences).sum(dim=0), rtol=0, atol=1e-5)
        torch.testing.assert_close(at_once.mean, one_by_one.mean, rtol=0, atol=1e-6)
        if at_once.readable:
            for i in range(CLIENTS):
                assert torch.equal(at_once[i], one_by_one[i]), "what is stored is the same, bit for bit"


def test_a_client_side_cache_replaces_entries_like_a_dense_one() -> None:
    dense, held = Dense(), ClientSide()
    for cache in (dense, held):
        cache.start(torch.zeros(1000), CLIENTS)
    for fresh in histories(1000):
        for one, other in zip(dense.replace(fresh, int), held.replace(fresh, int), strict=True):
            assert torch.equal(one, other)
        assert torch.equal(dense.total, held.total)


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("dim", [5, PIECE, 2 * PIECE + 3])
def test_a_long_vector_is_quantized_with_the_noise_of_one_draw(bits: int, dim: int) -> None:
    cache, value = Quantized(bits=bits), torch.randn(dim)  # type: ignore[arg-type]
    cache.start(value, 2)
    cache.store(1, value, 99)
    packed = quantize(value, bits, torch.rand(dim, generator=torch_stream(99)))
    assert torch.equal(cache[1], dequantize(packed, bits, value))
    assert len(packed.codes) == -(-dim * bits // 8)


@pytest.mark.parametrize("dim", [5, PIECE, 2 * PIECE + 3])
@pytest.mark.parametrize("batched", [False, True])
def test_every_tensor_has_levels_between_its_own_ends(dim: int, batched: bool) -> None:
    """The ends are exact in every tensor, however its numbers compare to those of the others."""
    scale = torch.ones(dim)
    layout = tensors(dim)
    layout.unflatten(scale)["b"][:] = 1e-3
    value = torch.randn(dim) * scale
    cache = Quantized(bits=2, levels=2, rounding="nearest", range="tensor")
    cache.use_layout(layout)
    cache.start(value, 3)
    if batched:
        cache.replace([(0, torch.randn(dim)), (1, value)], int)
    else:
        cache.store(1, value, 0)
    for part, stored in zip(layout.unflatten(value).values(), layout.unflatten(cache[1]).values(), strict=True):
        if part.numel():
            low, high = part.min(), part.max()
            expected = torch.where(part - low < high - part, low, high)
            torch.testing.assert_close(stored, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("extra", [{}, {"range": "tensor"}], ids=["vector", "tensor"])
@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("dim", [PIECE, 2 * PIECE, 3 * PIECE + 5])
def test_pieces_in_one_batch_are_packed_alike(
    bits: int, dim: int, extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU packs in one batch must be readable where pieces are processed one after the other."""
    value, after = torch.randn(2, dim)
    rows, totals = [], []
    for one_by_one in (True, False):
        monkeypatch.setattr("offbeat.compression.bits.one_by_one", lambda x, answer=one_by_one: answer)
        cache = Quantized(bits=bits, **extra)  # type: ignore[arg-type]
        cache.use_layout(tensors(dim))
        cache.start(value, 2)
        cache.store(1, value, 7)
        cache.replace([(0, value), (1, after), (1, value)], lambda place: place)
        rows.append([*cache.rows[0], *cache.rows[1], cache[0], cache[1]])
        totals.append(cache.total)
    assert all(torch.equal(*pair) for pair in zip(*rows, strict=True))
    assert torch.equal(*totals)


def test_blocks_cover_the_vector_in_order() -> None:
    for n in (1, BLOCK, BLOCK + 1, 5 * BLOCK + 7):
        v = torch.arange(n)
        assert torch.equal(torch.cat(list(blocks(v))), v)
        assert all(block.untyped_storage().data_ptr() == v.data_ptr() for block in blocks(v))


def test_an_empty_hugepage_vector_behaves_like_any_other() -> None:
    """This also holds above 32 MB, where it lies in huge pages."""
    for dim in (3, (32 << 20) // 4 + 5):
        like = torch.zeros(dim)
        v = empty_hugepages_like(like)
        assert (v.shape, v.dtype, v.device) == (like.shape, like.dtype, like.device)
        v.fill_(2)
        file = io.BytesIO()
        torch.save(v, file)
        file.seek(0)
        assert torch.equal(torch.load(file, weights_only=True), v)


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every operation fail that would wait for a CUDA device."""

    def refuse(self: Tensor, *args: object) -> None:
        raise AssertionError("asks a tensor for its value")

    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__", "nonzero"):
        monkeypatch.setattr(Tensor, name, refuse)


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("make", [Dense, ClientSide, Quantized])
@pytest.mark.parametrize("name", ["ca2fl", "mifa", "ace", "dude-asgd", "area", "afa-cs"])
def test_no_rule_with_a_cache_waits_for_the_device(name: str, make: type[UpdateCache]) -> None:
    arrivals(ALGORITHMS[name](cache=make()))  # type: ignore[call-arg]


@pytest.mark.usefixtures("no_waiting")
def test_a_cache_with_a_range_per_tensor_does_not_wait_for_the_device() -> None:
    cache = Quantized(range="tensor", rounding="nearest")
    cache.use_layout(tensors(9))
    arrivals(ALGORITHMS["ca2fl"](cache=cache))  # type: ignore[call-arg]


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("name", [n for n, kind in ALGORITHMS.items() if kind().network() is None])
def test_no_rule_waits_for_the_device(name: str) -> None:
    arrivals(ALGORITHMS[name]())


def arrivals(rule: Algorithm) -> None:
    rule.start(torch.zeros(9), 3, participation=lambda _: 0.5)
    for n in range(12):
        job = Job(n, n % 3, rule.version, rule.x, 1, n)
        rule.receive(job, Update(n, n % 3, rule.version, torch.full((9,), 0.1 * n), 1, 1, 36))
        if n % 2 or rule.schedulers == ("per-arrival",):
            rule.step()


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("codec", [QSGD(), Sign(), Uniform()])
def test_no_dense_codec_waits_for_the_device(codec: QSGD | Sign | Uniform) -> None:
    codec.carry(torch.linspace(-1, 1, 9), Layout(("p",), (torch.Size([9]),)), 3)
