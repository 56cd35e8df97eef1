"""Attackers: which clients they are, and what each attack does to Δ or to labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from offbeat.environment import (
    ATTACKS,
    ALittle,
    Attack,
    Environment,
    Forgery,
    Gaussian,
    InnerProduct,
    Known,
    LabelFlip,
    Scaled,
    SignFlip,
    StaleReplay,
)
from offbeat.errors import ConfigError

RNG = np.random.default_rng(0)
DELTA, FIRST = (torch.from_numpy(RNG.standard_normal(30)) for _ in range(2))
HONEST = [torch.from_numpy(row) for row in RNG.standard_normal((4, 30))]


def forged(attack: Forgery, seed: int = 1, honest: list[Tensor] = HONEST) -> Any:
    before = [t.clone() for t in (DELTA, FIRST, *honest)]
    sent = attack.forge(DELTA, Known(seed, FIRST, honest))
    assert all(torch.equal(a, b) for a, b in zip(before, (DELTA, FIRST, *honest), strict=True)), "nothing is changed"
    return sent.numpy()


def test_names() -> None:
    assert list(ATTACKS) == [
        "sign-flip", "scaled", "gaussian", "label-flip", "inner-product", "a-little", "stale-replay",
    ]  # fmt: skip
    assert Environment().attack is None
    assert Environment().attackers(0, 100) == frozenset()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 400), st.floats(0, 1), st.floats(0, 1))
def test_a_share_of_attackers_is_exact_seeded_and_nested(seed: int, clients: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    few, many = (SignFlip(share=share).attackers(seed, clients) for share in (low, high))
    assert len(few) == round(low * clients)
    assert few <= many <= set(range(clients))
    assert few == Gaussian(share=low).attackers(seed, clients), "whatever they do"


def test_each_seed_draws_other_attackers_uniformly() -> None:
    drawn = [SignFlip(share=0.2).attackers(seed, 50) for seed in range(100)]
    assert len(set(drawn)) > 95
    counts = np.bincount([client for group in drawn for client in group], minlength=50)
    assert abs(counts - 20).max() < 5 * np.sqrt(100 * 0.2 * 0.8)


def test_a_list_of_attackers_replaces_the_share() -> None:
    environment = Environment(attack=SignFlip(clients=(3, 1), share=0.9))
    environment.check(4)
    assert environment.attackers(7, 4) == {1, 3}
    with pytest.raises(ConfigError, match=r"environment\.attack\.clients: 3, but the clients are 0 to 2"):
        environment.check(3)


def test_each_forgery_in_numpy() -> None:
    delta, honest = DELTA.numpy(), np.stack([row.numpy() for row in HONEST])
    np.testing.assert_array_equal(forged(SignFlip()), -delta)
    np.testing.assert_array_equal(forged(Scaled(factor=-3.5)), -3.5 * delta)
    np.testing.assert_array_equal(forged(StaleReplay()), FIRST.numpy())
    np.testing.assert_allclose(forged(InnerProduct(epsilon=0.3)), -0.3 * honest.mean(axis=0))
    np.testing.assert_allclose(forged(ALittle(z=2.0)), honest.mean(axis=0) - 2 * honest.std(axis=0))
    np.testing.assert_allclose(forged(InnerProduct(epsilon=0.3), honest=[]), -0.3 * delta)
    np.testing.assert_allclose(forged(ALittle(), honest=[]), delta)


def test_gaussian_noise_depends_on_the_trip_and_has_the_configured_width() -> None:
    attack, long = Gaussian(std=3.0), torch.ones(40_000)
    one, again, other = (attack.forge(long, Known(seed, long, [])) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert abs(float(one.mean())) < 5 * 3 / 200
    assert abs(float(one.std()) - 3) < 5 * 3 / np.sqrt(2 * 40_000)
    assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 5 / 200


def test_labels() -> None:
    y = torch.tensor([0, 1, 2, 3, 1])
    assert LabelFlip().labels(y, 4).tolist() == [3, 2, 1, 0, 2]
    assert LabelFlip(pair=(1, 3)).labels(y, 4).tolist() == [0, 3, 2, 3, 3]
    with pytest.raises(ConfigError, match=r"environment\.attack\.pair: 4, but labels are 0 to 3"):
        LabelFlip(pair=(4, 0)).labels(y, 4)


@pytest.mark.parametrize("wrong", [{"share": 1.5}, {"share": -0.1}, {"clients": (-1,)}])
@pytest.mark.parametrize("name", ATTACKS)
def test_mistakes_are_refused(name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ATTACKS[name](**wrong)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [(Scaled, {"factor": float("inf")}), (Gaussian, {"std": 0.0}), (InnerProduct, {"latest": 0}), (ALittle, {"z": -1})],
)
def test_options_have_bounds(kind: type[Attack], wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        kind(**wrong)
