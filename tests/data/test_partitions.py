"""Partitions: the contract of all of them, and the properties of each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from offbeat.data import IID, PARTITIONS, Dirichlet, LabelShards, Natural, Partition, QuantitySkew, Sampled
from offbeat.data.partitions import _top_up
from offbeat.errors import ConfigError

Indices = NDArray[np.int64]

USING_ALL = [
    IID(),
    Dirichlet(alpha=1e-3, min_size=1),
    Dirichlet(alpha=0.3, min_size=5),
    Dirichlet(alpha=1e4, min_size=1),
    QuantitySkew(alpha=1e-3, min_size=1),
    QuantitySkew(alpha=0.5, min_size=5),
]
EVERY = [
    *USING_ALL, LabelShards(classes=1), LabelShards(classes=2),
    Dirichlet(by="client", alpha=1e-3, min_size=1), Dirichlet(by="client", alpha=0.3, min_size=1),
]  # fmt: skip


def balanced(examples: int, classes: int) -> Indices:
    return np.arange(examples) % classes


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels_held(parts: list[Indices], labels: Indices) -> list[set[int]]:
    return [set(labels[part].tolist()) for part in parts]


@given(st.sampled_from(EVERY), st.integers(0, 2**32), st.integers(60, 150), st.integers(2, 6), st.integers(1, 12))
@settings(max_examples=120, deadline=None)
def test_no_example_is_given_twice(law: Partition, seed: int, examples: int, classes: int, clients: int) -> None:
    labels = rng(seed).integers(classes, size=examples)
    labels[:classes] = np.arange(classes)  # so that no label is missing
    parts = law.split(labels, clients, rng(seed))
    assert len(parts) == clients
    given_out = np.concatenate(parts)
    assert len(np.unique(given_out)) == len(given_out)
    assert np.isin(given_out, np.arange(examples)).all()


@given(st.sampled_from(USING_ALL), st.integers(0, 2**32), st.integers(60, 150), st.integers(1, 6), st.integers(1, 12))
@settings(max_examples=120, deadline=None)
def test_no_example_is_left_over_and_nobody_has_too_few(
    law: Partition, seed: int, examples: int, classes: int, clients: int
) -> None:
    parts = law.split(rng(seed).integers(classes, size=examples), clients, rng(seed))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(examples))
    assert min(map(len, parts)) >= getattr(law, "min_size", 1)


@pytest.mark.parametrize("law", EVERY, ids=str)
def test_the_generator_decides_everything(law: Partition) -> None:
    labels = balanced(200, 5)
    first, again, other = (law.split(labels, 6, rng(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("law", EVERY, ids=str)
def test_labels_are_only_read(law: Partition) -> None:
    labels = balanced(200, 5)
    labels.setflags(write=False)
    law.split(labels, 6, rng())


def test_names() -> None:
    assert sorted(PARTITIONS.items()) == [
        ("dirichlet", Dirichlet),
        ("iid", IID),
        ("label-shards", LabelShards),
        ("natural", Natural),
        ("quantity-skew", QuantitySkew),
        ("sampled", Sampled),
    ]


def test_iid_deals_out_evenly_and_shuffles() -> None:
    labels = np.sort(balanced(1003, 10))  # sorted, so that a cut without a shuffle would give one label a client
    parts = IID().split(labels, 10, rng())
    assert sorted(map(len, parts)) == [100] * 7 + [101] * 3
    assert all(len(held) >= 9 for held in labels_held(parts, labels))


@pytest.mark.parametrize("law", [Dirichlet(alpha=1e-3, min_size=10), QuantitySkew(alpha=1e-3, min_size=10)], ids=str)
def test_min_size_holds_where_redrawing_would_never_end(law: Partition) -> None:
    parts = law.split(balanced(6000, 10), 500, rng())
    assert min(map(len, parts)) == 10
    assert len(np.unique(np.concatenate(parts))) == 6000


@pytest.mark.parametrize("law", [Dirichlet(alpha=0.01, min_size=10), QuantitySkew(alpha=0.01, min_size=10)], ids=str)
def test_min_size_may_use_up_everything_but_not_more(law: Partition) -> None:
    assert [len(part) for part in law.split(balanced(50, 3), 5, rng())] == [10] * 5
    with pytest.raises(ConfigError) as caught:
        law.split(balanced(49, 3), 5, rng())
    assert caught.value.key == "min_size"
    assert str(caught.value) == "min_size: 10 examples for each of 5 clients are more than the 49 available"


def test_top_up_takes_from_those_who_have_most() -> None:
    """By hand: 10 of the 40, then 7 of the remaining 30."""
    parts = [np.arange(n) + 100 * i for i, n in enumerate((0, 3, 40, 23))]
    assert [len(part) for part in _top_up(parts, 10, rng())] == [10, 10, 23, 23]


def test_top_up_where_one_has_all() -> None:
    """At this alpha one client has (nearly) all examples: the others get exactly min_size, all from that client."""
    sizes = sorted(map(len, QuantitySkew(alpha=1e-6, min_size=10).split(balanced(1000, 10), 10, rng())))
    assert sizes == [10] * 9 + [910]


def test_small_alpha_means_few_labels() -> None:
    labels = balanced(10_000, 10)

    def mean_labels(alpha: float) -> float:
        parts = Dirichlet(alpha=alpha, min_size=1).split(labels, 10, rng())
        return float(np.mean([len(held) for held in labels_held(parts, labels)]))

    few, some, all_ = mean_labels(0.01), mean_labels(0.3), mean_labels(1000.0)
    assert all_ == 10
    assert few < 3  # at alpha → 0 a label belongs to one client: one label a client on average
    assert few + 2 < some < all_ - 1


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_dirichlet_shares_have_the_moments_of_the_law(alpha: float) -> None:
    """A share of Dir(alpha) over K has the mean 1/K and the second moment (alpha + 1) / (K(K·alpha + 1))."""
    clients, classes, each = 10, 600, 200
    labels = np.repeat(np.arange(classes), each)
    parts = Dirichlet(alpha=alpha, min_size=1).split(labels, clients, rng())
    shares = np.stack([np.bincount(labels[part], minlength=classes) for part in parts]) / each
    variance = (alpha + 1) / (clients * (clients * alpha + 1)) - 1 / clients**2
    # Each client's own mean, so that none is favoured; the rounding of cuts moves a share by up to 1/each.
    assert np.abs(shares.mean(axis=1) - 1 / clients).max() < 4 * np.sqrt(variance / classes) + 1 / each
    assert shares.var() == pytest.approx(variance, rel=0.1)


@given(st.floats(1e-3, 100), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_dirichlet_by_client_gives_equal_sizes(alpha: float, seed: int) -> None:
    labels = rng(seed).integers(5, size=203)
    parts = Dirichlet(by="client", alpha=alpha, min_size=1).split(labels, 10, rng(seed))
    assert [len(part) for part in parts] == [20] * 10


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_dirichlet_by_client_has_the_moments_of_the_law(alpha: float) -> None:
    """A label's share of the first client, whom no label runs out for, has the moments of Dir(alpha)."""
    classes, size, repeats = 4, 500, 1000
    labels = balanced(2 * classes * size, classes)  # 2·classes clients: each label suffices for two of them
    shares = []
    for seed in range(repeats):
        random = rng(seed)
        parts = Dirichlet(by="client", alpha=alpha).split(labels, 2 * classes, random)
        first = rng(seed)
        for _ in range(classes):
            first.permutation(2 * size)
        shares.append(np.bincount(labels[parts[first.permutation(2 * classes)[0]]], minlength=classes) / size)
    variance = (classes - 1) / classes**2 / (classes * alpha + 1)
    noise = (1 / classes - 1 / classes**2 - variance) / size  # of drawing examples
    found = np.array(shares)
    np.testing.assert_allclose(found.mean(axis=0), 1 / classes, atol=4 * np.sqrt(variance / repeats))
    np.testing.assert_allclose(found.var(), variance + noise, rtol=0.1)


def test_dirichlet_by_client_needs_enough_examples() -> None:
    with pytest.raises(ConfigError, match="have 4 of the 40 examples each, fewer than min_size"):
        Dirichlet(by="client").split(balanced(40, 4), 10, rng())


def test_quantity_sizes_have_the_moments_of_the_law() -> None:
    alpha, clients, examples = 0.5, 5, 1000
    splits = [QuantitySkew(alpha=alpha, min_size=1).split(balanced(examples, 2), clients, rng(s)) for s in range(800)]
    shares = np.array([[len(part) for part in parts] for parts in splits]) / examples
    variance = (alpha + 1) / (clients * (clients * alpha + 1)) - 1 / clients**2
    assert np.abs(shares.mean(axis=0) - 1 / clients).max() < 4 * np.sqrt(variance / 800)
    assert shares.var() == pytest.approx(variance, rel=0.1)


def test_quantity_skew_gives_all_clients_the_same_label_distribution() -> None:
    labels = np.sort(balanced(20_000, 5))
    parts = QuantitySkew(alpha=0.5).split(labels, 10, rng())
    large = [part for part in parts if len(part) > 500]
    assert len(large) >= 3
    assert max(map(len, parts)) > 3 * min(map(len, parts)), "the amounts are unequal"
    for part in large:
        shares = np.bincount(labels[part], minlength=5) / len(part)
        assert np.abs(shares - 0.2).max() < 4 * np.sqrt(0.2 * 0.8 / len(part))


@given(st.integers(1, 10), st.integers(1, 10), st.integers(1, 30), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_label_shards_give_each_client_the_same_number_of_labels(
    classes: int, per_client: int, clients: int, seed: int
) -> None:
    per_client = min(per_client, classes)
    labels = balanced(40 * classes, classes)
    parts = LabelShards(classes=per_client).split(labels, clients, rng(seed))
    held = labels_held(parts, labels)
    assert {len(own) for own in held} == {per_client}
    owners = [sum(label in own for own in held) for label in range(classes)]
    assert max(owners) - min(owners) <= 1
    for label, count in enumerate(owners):  # dealt out evenly among them, and wholly
        amounts = [int((labels[part] == label).sum()) for part, own in zip(parts, held, strict=True) if label in own]
        assert sum(amounts) == (40 if count else 0)
        assert not amounts or max(amounts) - min(amounts) <= 1


def test_label_shards_with_all_labels_give_every_client_every_label() -> None:
    labels = balanced(300, 3)
    parts = LabelShards(classes=3).split(labels, 4, rng())
    assert [np.bincount(labels[part]).tolist() for part in parts] == [[25, 25, 25]] * 4


def test_labels_are_grouped_at_random() -> None:
    labels = balanced(400, 10)
    pairs = {frozenset(labels_held(LabelShards(classes=2).split(labels, 1, rng(s)), labels)[0]) for s in range(300)}
    assert len(pairs) > 40  # of 45; each is missed by 300 draws with probability 0.1 %


def test_more_classes_than_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        LabelShards(classes=4).split(balanced(30, 3), 2, rng())
    assert caught.value.key == "classes"
    assert str(caught.value) == "classes: 4 classes per client, but the data has only 3"


@pytest.mark.parametrize(
    ("law", "values", "field"),
    [
        (Dirichlet, {"alpha": 0.0}, "alpha"),
        (Dirichlet, {"min_size": 0}, "min_size"),
        (QuantitySkew, {"alpha": -1.0}, "alpha"),
        (LabelShards, {"classes": 0}, "classes"),
    ],
)
def test_bounds(law: type[Partition], values: dict[str, float], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        law(**values)
    assert caught.value.key == field


def test_no_client_gets_fewer_than_the_minimum() -> None:
    """Rounding must not favor a client: over many draws the last one has as many labels as the others."""
    labels = np.repeat(np.arange(10), 100)
    kinds = np.zeros(30)
    for seed in range(40):
        parts = Dirichlet(alpha=0.1, min_size=1).split(labels, 30, np.random.default_rng(seed))
        kinds += [len(set(labels[part].tolist())) for part in parts]
    assert abs(kinds[-1] - kinds[:-1].mean()) < 4 * kinds[:-1].std()


def test_natural_gives_each_client_the_examples_of_one_owner() -> None:
    owners = np.array([7, 2, 7, 7, 0, 2])
    assert [part.tolist() for part in Natural().split(owners, 3, rng())] == [[4], [1, 5], [0, 2, 3]]


def test_fewer_clients_than_owners_are_drawn_among_them() -> None:
    owners = rng().permutation(np.repeat(np.arange(40), 5))
    first, again, other = (Natural().split(owners, 10, rng(seed)) for seed in (1, 1, 2))
    drawn, drawn_too = ([{int(i) for i in owners[part]} for part in parts] for parts in (first, other))
    assert all(len(who) == 1 for who in drawn)
    assert len({min(who) for who in drawn}) == 10
    assert [min(who) for who in drawn] == sorted(min(who) for who in drawn)
    assert [p.tolist() for p in first] == [p.tolist() for p in again]
    assert drawn != drawn_too


def test_more_clients_than_owners_are_refused() -> None:
    with pytest.raises(ConfigError, match="the data has 3 owners, too few for 4 clients"):
        Natural().split(np.array([0, 1, 2, 2]), 4, rng())
