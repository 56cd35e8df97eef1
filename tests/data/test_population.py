"""Partitions that are drawn on demand, compared with stored ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offbeat as ob
from offbeat.data import FederatedData, PartitionedDataset, Population, Sampled, Synthetic, from_arrays
from offbeat.errors import ConfigError, DataError
from offbeat.models import LR
from offbeat.random import key

LABELS = np.repeat(np.arange(5), [40, 10, 30, 5, 15])
X = np.zeros((100, 2), dtype=np.float32)
DATA = from_arrays(X, LABELS, X, LABELS, classes=6)  # of the sixth label there is no example


def population(clients: int = 50, size: int = 8, alpha: float = 0.5, seed: int = 0) -> Population:
    return Population(DATA, clients, Sampled(size=size, alpha=alpha), key(seed, "partition"))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=6), min_size=1, max_size=9), st.data())
def test_the_pool_behaves_like_plain_lists(parts: list[list[int]], data: st.DataObject) -> None:
    """`PartitionedDataset` stores one column of indices, which agrees with the lists."""
    columns = PartitionedDataset.of(DATA, parts)
    assert columns.clients == len(parts)
    assert columns.sizes.tolist() == [columns.size(i) for i in range(len(parts))] == [len(part) for part in parts]
    assert [columns.indices(i).tolist() for i in range(len(parts))] == parts
    table = [[sum(LABELS[i] == label for i in part) for label in range(6)] for part in parts]
    assert columns.label_counts().tolist() == table
    whom = data.draw(st.lists(st.integers(0, len(parts) - 1), min_size=1, max_size=5))
    places = np.array([[[data.draw(st.integers(0, len(parts[i]) - 1)) for _ in range(3)] for i in whom] for _ in "12"])
    expected = [[[parts[i][p] for p in row] for i, row in zip(whom, step, strict=True)] for step in places.tolist()]
    assert columns.at(whom, places).tolist() == expected


@pytest.mark.parametrize("clients", [PartitionedDataset.of(DATA, np.split(np.arange(100), 10)), population()])
def test_positions_of_several_clients(clients: FederatedData) -> None:
    whom, places = [3, 0, 7, 3], np.random.default_rng(0).integers(8, size=(5, 4, 6))
    found = clients.at(whom, places)
    assert found.shape == places.shape
    for column, client in enumerate(whom):
        np.testing.assert_array_equal(found[:, column], clients.indices(client)[places[:, column]])


def test_a_partition_does_not_depend_on_the_other_clients_of_a_query() -> None:
    many, few = population(clients=10**9), population(clients=3)
    assert (
        many.indices(2).tolist() == few.indices(2).tolist() == few.at([0, 2], np.tile(np.arange(8), (2, 1)))[1].tolist()
    )
    assert many.indices(2).tolist() != many.indices(10**9 - 1).tolist()
    assert many.indices(2).tolist() != population(seed=1).indices(2).tolist()
    assert many.size(10**9 - 1) == len(many.indices(10**9 - 1)) == 8


def test_label_counts() -> None:
    drawn = population()
    counts = drawn.label_counts()
    for client in range(drawn.clients):
        np.testing.assert_array_equal(counts[client], np.bincount(LABELS[drawn.indices(client)], minlength=6))
    assert (counts.sum(axis=1) == drawn.sizes).all()


@pytest.mark.parametrize("alpha", [0.05, 0.5, 20.0])
def test_mixes_have_the_moments_of_the_law(alpha: float) -> None:
    """Of 5 labels that have examples: the shares' mean is 1/5, and two examples of a client have the same label with
    probability E Σ p² = (alpha + 1)/(5·alpha + 1)."""
    n = 20_000
    counts = population(clients=n, size=6, alpha=alpha).label_counts()
    assert counts[:, 5].sum() == 0
    alike = (counts * (counts - 1)).sum(axis=1) / (6 * 5)
    expected = (alpha + 1) / (5 * alpha + 1)
    assert abs(alike.mean() - expected) < 5 * alike.std() / n**0.5
    shares = counts[:, :5] / 6
    assert (np.abs(shares.mean(axis=0) - 0.2) < 5 * shares.std(axis=0) / n**0.5).all()


def test_every_example_of_a_label_is_as_likely() -> None:
    clients = np.arange(4000)
    drawn = population(clients=4000).at(clients.tolist(), np.tile(np.arange(8), (4000, 1))).ravel()
    for label in range(5):
        counts = np.bincount(drawn, minlength=100)[label == LABELS]
        assert (np.abs(counts - counts.mean()) < 5 * counts.mean() ** 0.5).all()


def test_more_clients_than_examples() -> None:
    settings: dict[str, Any] = {
        "data": Synthetic(examples=500, features=5), "clients": 30_000, "model": LR(), "algorithm": ob.CA2FL(),
        "client": ob.SGD(lr=0.1, steps=2, batch_size=4), "scheduler": ob.Buffered(concurrency=20, buffer=10),
        "rounds": 20, "executor": "vectorized",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="at most one each"):
        ob.run(**settings)
    one, other = (ob.run(**settings, partition=Sampled(size=6)) for _ in "12")
    assert one.accuracy == other.accuracy > 0.5
    assert one.summary["clients"] == 30_000


def test_errors_name_the_first_client() -> None:
    with pytest.raises(DataError, match="client 2: index 100 in a dataset of 100"):
        PartitionedDataset.of(DATA, [[1], [2, 3], [4, 100], [-1]])
