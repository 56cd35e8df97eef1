"""The update caches."""

from __future__ import annotations

import copy
import io
import pathlib
import shutil
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.processes import resident_bytes

from offbeat.cache import CACHES, ClientSide, Dense, Disk, Quantized, UpdateCache
from offbeat.compression.bits import dequantize, pack, quantize, unpack
from offbeat.errors import ConfigError
from offbeat.runs.config import parse

EVERY = pytest.mark.parametrize("make", [Dense, Disk, *(lambda b=b: Quantized(bits=b) for b in (8, 4, 2))])


def rows(cache: UpdateCache, clients: int) -> torch.Tensor:
    return torch.stack([cache[i] for i in range(clients)])


@EVERY
def test_the_mean_of_a_cache_is_that_of_its_entries(make: type[UpdateCache]) -> None:
    cache, rng = make(), torch.Generator().manual_seed(0)
    cache.start(torch.zeros(31), 5)
    assert not rows(cache, 5).any(), "zero until the first store"
    for n in range(200):
        cache.store(n * 7 % 5 if n > 20 else n % 3, torch.randn(31, generator=rng), n)
        torch.testing.assert_close(cache.mean, rows(cache, 5).mean(dim=0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("make", [Dense, ClientSide, *(lambda b=b: Quantized(bits=b) for b in (8, 4, 2))])
def test_a_loaded_cache_continues_identically(make: type[UpdateCache]) -> None:
    cache, copy = make(), make()
    cache.start(torch.zeros(9), 4)
    cache.store(2, torch.randn(9), 1)
    copy.start(torch.zeros(9), 4)
    file = io.BytesIO()
    torch.save(cache.state_dict(), file)
    file.seek(0)
    copy.load_state_dict(torch.load(file, weights_only=True))
    value = torch.randn(9)
    for client in range(4):
        assert torch.equal(copy.difference(client, value), cache.difference(client, value))
    assert torch.equal(copy.mean, cache.mean)


def test_a_cache_stores_an_update_without_copying_it() -> None:
    """Updates never change after they arrive; a view of a larger tensor is copied, since it would keep that alive."""
    for cache in (Dense(), ClientSide()):
        cache.start(torch.zeros(16), 2)
        own, part = torch.linspace(-1, 1, 16), torch.randn(4, 16)[2]
        cache.store(0, own, 0)
        cache.store(1, part, 0)
        assert cache.rows[0] is own
        assert cache.rows[1].untyped_storage().nbytes() == 64
        assert torch.equal(cache.rows[1], part)


@pytest.mark.parametrize("make", [Disk, *(lambda b=b: Quantized(bits=b) for b in (8, 4, 2))])
def test_other_caches_copy_the_update(make: type[UpdateCache]) -> None:
    cache, value = make(), torch.linspace(-1, 1, 16)
    cache.start(value, 2)
    cache.store(0, value, 0)
    before = cache[0].clone()
    value.zero_()
    assert torch.equal(cache[0], before)


@given(st.sampled_from([8, 4, 2]), st.integers(1, 67), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_unpacking_undoes_packing(bits: int, n: int, seed: int) -> None:
    levels = torch.randint(2**bits, (n,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    packed = pack(levels, bits)
    assert len(packed) == -(-n * bits // 8)
    assert torch.equal(unpack(packed, bits, n), levels)


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_quantization_is_unbiased_and_off_by_less_than_a_level(bits: int) -> None:
    x = torch.linspace(-2, 3, 50)
    rng = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(4000):
        packed = quantize(x, bits, torch.rand(x.shape, generator=rng))
        value = dequantize(packed, bits, x)
        assert (value - x).abs().max() < packed.u * (1 + 1e-5)
        draws.append(value)
    u = 5 / (2**bits - 1)
    # The error of a draw has a standard deviation of at most u/2; six standard errors of the mean of 4000.
    assert (torch.stack(draws).mean(dim=0) - x).abs().max() < 6 * 0.5 * u / 4000**0.5


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_extreme_and_constant_vectors(bits: int) -> None:
    x = torch.tensor([-1.0, 1.0, 1.0, -1.0])
    for noise in (0.01, 0.5, 0.99):  # the ends are levels, so they come back whatever the noise
        back = dequantize(quantize(x, bits, torch.full((4,), noise)), bits, x)
        torch.testing.assert_close(back, x, rtol=0, atol=1e-6)
    same = torch.full((5,), 0.25)
    assert torch.equal(dequantize(quantize(same, bits, torch.rand(5)), bits, same), same)


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_rounding_is_unbiased_or_to_the_nearest_level(rounding: Any) -> None:
    """Levels 0, 1 and 2: the mean of many draws is the value itself, or the level next to it, up from the middle."""
    value = torch.tensor([0.0, 0.25, 0.5, 1.0, 1.4, 1.5, 1.9, 2.0])
    cache = Quantized(bits=2, levels=3, rounding=rounding)
    cache.start(value, 2)
    draws = []
    for seed in range(4000):
        cache.store(1, value, seed)
        draws.append(cache[1])
    mean = torch.stack(draws).mean(dim=0)
    if rounding == "nearest":
        assert mean.tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    else:  # a draw has a standard deviation of at most 1/2
        assert (mean - value).abs().max() < 6 * 0.5 / 4000**0.5


def test_more_levels_than_the_bits_can_tell_apart_are_refused() -> None:
    with pytest.raises(ConfigError, match="levels: 5 levels do not fit into 2 bits: use at most 4, or more bits"):
        Quantized(bits=2, levels=5)
    with pytest.raises(ConfigError, match=r"algorithm\.levels: 17 levels do not fit into 4 bits"):
        parse({"algorithm": {"name": "mf-ca2fl", "levels": 17}})
    with pytest.raises(ConfigError, match=r"algorithm\.cache\.levels: 1 is not an integer ≥ 2 and ≤ 256"):
        parse({"algorithm": {"name": "ca2fl", "cache": {"name": "quantized", "levels": 1}}})


def test_a_range_per_tensor_needs_the_sizes_of_the_tensors() -> None:
    cache = Quantized(range="tensor")
    with pytest.raises(
        ConfigError, match="range: 'tensor' needs the sizes of the tensors of a model with 9 parameters"
    ):
        cache.start(torch.zeros(9), 2)


@pytest.mark.parametrize(("bits", "share"), [(8, 0.251), (4, 0.126), (2, 0.0635)])
def test_packed_rows_really_are_small(bits: int, share: float) -> None:
    """Measured on the storage itself, not computed from the number of bits."""
    d, clients = 20_000, 12
    dense, packed = Dense(), Quantized(bits=bits)  # type: ignore[arg-type]
    for cache in (dense, packed):
        cache.start(torch.zeros(d), clients)
        for i in range(clients):
            cache.store(i, torch.randn(d), i)
    real = sum(codes.untyped_storage().nbytes() for codes, _, _ in packed.rows.values())
    assert real <= share * sum(row.untyped_storage().nbytes() for row in dense.rows.values())
    assert packed.nbytes <= share * dense.nbytes
    assert packed.nbytes >= real


def test_a_cache_stores_nothing_for_clients_that_never_participated() -> None:
    for kind in CACHES.values():
        cache = kind()
        cache.start(torch.zeros(1000), 10**9)
        cache.store(7, torch.ones(1000), 0)
        assert len(cache.rows) == 1
        assert cache.nbytes <= 4008


def test_a_client_side_cache_is_a_dense_cache_without_readable_rows() -> None:
    dense, held, rng = Dense(), ClientSide(), torch.Generator().manual_seed(0)
    for cache in (dense, held):
        cache.start(torch.zeros(31), 5)
    for n in range(60):
        client, value = n * 3 % 4, torch.randn(31, generator=rng)
        assert torch.equal(held.difference(client, value), dense.difference(client, value))
        dense.store(client, value, n)
        held.store(client, value, n)
        assert torch.equal(held.mean, dense.mean)
    assert held.nbytes == 0
    assert held.client_bytes == dense.nbytes
    with pytest.raises(TypeError, match="the server cannot read the entries"):
        held[0]


@EVERY
def test_a_forgotten_entry_is_zero_again(make: type[UpdateCache]) -> None:
    cache = make()
    cache.start(torch.zeros(9), 3)
    for client in range(3):
        cache.store(client, torch.randn(9), client)
    cache.forget(1)
    assert not cache[1].any()
    assert len(cache) == 2
    torch.testing.assert_close(cache.mean, rows(cache, 3).mean(dim=0), rtol=0, atol=1e-6)


def test_rows_on_disk_survive_until_no_saved_state_needs_them(tmp_path: pathlib.Path) -> None:
    """A run keeps two states; each must read its own rows after any later changes."""
    cache, rng = Disk(directory=str(tmp_path)), torch.Generator().manual_seed(0)
    cache.start(torch.zeros(50), 6)
    saved: list[tuple[bytes, torch.Tensor]] = []
    for round_ in range(12):
        for n in range(9):
            cache.store(n % 6, torch.randn(50, generator=rng), n)
        file = io.BytesIO()
        torch.save(cache.state_dict(), file)
        saved.append((file.getvalue(), rows(cache, 6)))
        for n in range(5):
            cache.store(n % 4, torch.randn(50, generator=rng), n)
        for state, expected in saved[-2:]:
            copied = tmp_path / f"copy-{round_}-{len(state)}-{expected.sum():.6f}"  # what a killed run has left
            copied.mkdir()
            (copied / "cache.bin").write_bytes((tmp_path / "cache.bin").read_bytes())
            old = Disk(directory=str(copied))
            old.start(torch.zeros(50), 6)
            old.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
            assert torch.equal(rows(old, 6), expected), round_
    assert cache.disk_bytes <= 12 * 6 * 200, "slots come free again"


def test_a_resumed_file_does_not_grow_beyond_that_of_an_uninterrupted_run(tmp_path: pathlib.Path) -> None:
    """Slots that were free, or about to become free, when the state was saved are used again after a resume."""

    def started(name: str) -> Disk:
        cache = Disk(directory=str(tmp_path / name))
        cache.start(torch.zeros(50), 6)
        return cache

    def play(cache: Disk, first: int, last: int) -> dict[str, Any]:
        for n in range(first, last):
            for client in range(6):
                cache.store(client, torch.full((50,), float(n)), n)
            state = cache.state_dict()
        return state

    whole, cut, resumed = started("whole"), started("cut"), started("resumed")
    play(whole, 0, 12)
    state = copy.deepcopy(play(cut, 0, 4))
    (tmp_path / "resumed").mkdir()
    shutil.copy(tmp_path / "cut/cache.bin", tmp_path / "resumed/cache.bin")
    resumed.load_state_dict(state)
    play(resumed, 4, 12)
    assert resumed.disk_bytes == whole.disk_bytes
    assert torch.equal(rows(resumed, 6), rows(whole, 6))


def test_the_file_grows_with_the_rows_and_not_with_the_arrivals() -> None:
    cache = Disk()
    cache.start(torch.zeros(1000), 2)
    for n in range(2000):
        cache.store(n % 2, torch.randn(1000), n)
    assert cache.disk_bytes <= 16 * 4000


def test_two_caches_do_not_share_a_file(tmp_path: pathlib.Path) -> None:
    one, other = Disk(directory=str(tmp_path)), Disk(directory=str(tmp_path))
    for cache in (one, other):
        cache.start(torch.zeros(4), 2)
    one.store(0, torch.ones(4), 0)
    with pytest.raises(ConfigError, match="in use by another cache"):
        other.store(0, torch.zeros(4), 0)


def test_the_mean_hardly_drifts() -> None:
    """Large updates and then small ones, as in training.

    What remains is the rounding of the differences, which travel as 32-bit floats with a client-side cache; the error
    of a mean in 32 bits would be four times larger.
    """
    cache, rng = Dense(), torch.Generator().manual_seed(0)
    clients, stores = 1000, 20_000
    cache.start(torch.zeros(8), clients)
    for scale in (10.0, 1e-3):
        for n in range(stores):
            cache.store(n % clients, scale * torch.randn(8, generator=rng), n)
    exact = torch.stack([cache[i].double() for i in range(clients)]).mean(dim=0)
    rounding = 2**-24 * 20 / clients  # of one difference of size 20
    assert (cache.mean.double() - exact).abs().max() < 4 * rounding * stores**0.5


def test_rows_on_disk_stay_out_of_ram() -> None:
    """200 rows of 400 kB with a budget of 2 MB: resident memory must not grow by their 80 MB."""
    cache = Disk(budget_mb=2.0)
    cache.start(torch.zeros(100_000), 200)
    value = torch.randn(100_000)
    for client in range(200):
        cache.store(client, value, client)
    before = most = resident_bytes()
    for client in range(200):  # the file no longer grows, which would map it anew
        assert torch.equal(cache[client], value)
        most = max(most, resident_bytes())
    assert most - before < 40_000_000
    assert cache.disk_bytes >= 80e6
