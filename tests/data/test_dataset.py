"""A data set in memory, and its partition among clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from offbeat.data import IID, Dataset, PartitionedDataset, from_arrays, from_datasets
from offbeat.errors import DataError

X, Y = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])


def federated(parts: list[list[int]]) -> PartitionedDataset:
    return PartitionedDataset.of(Dataset(X, Y, X, Y, 3), parts)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X[:3], Y, "3 examples with 4 labels"),
        (X, Y[:2], "4 examples with 2 labels"),
        (X[:0], Y[:0], "0 examples with 0 labels"),
        (X, Y.int(), r"labels: one integer per example expected, got torch.int32 of \[4\]"),
        (X, Y.float(), "got torch.float32"),
        (X, Y[:, None], r"got torch.int64 of \[4, 1\]"),
        (X, Y - 1, "labels: -1 to 1, but there are 3 classes"),
        (X, Y + 1, "labels: 1 to 3, but there are 3 classes"),
        (X.index_fill(0, torch.tensor([2]), torch.nan), Y, "some inputs are not finite"),
        (X.index_fill(0, torch.tensor([2]), torch.inf), Y, "some inputs are not finite"),
    ],
)
def test_invalid_data_is_rejected_with_the_name_of_its_part(x: Tensor, y: Tensor, message: str) -> None:
    with pytest.raises(DataError, match="^training.*" + message):
        Dataset(x, y, X, Y, 3)
    with pytest.raises(DataError, match="^test.*" + message):
        Dataset(X, Y, x, y, 3)


def test_training_and_test_inputs_have_one_shape() -> None:
    with pytest.raises(DataError, match=r"training inputs are \[3\], test inputs \[1, 3\]"):
        Dataset(X, Y, X[:, None], Y, 3)
    assert Dataset(X[:, None], Y, X[:2, None], Y[:2], 3).shape == (1, 3)


def test_bytes_become_floats_from_zero_to_one() -> None:
    raw = torch.tensor([[0, 51, 255]] * 4, dtype=torch.uint8)
    data = Dataset(raw, Y, raw, Y, 3)
    assert data.x.dtype == torch.uint8, "they are stored as they came"
    assert data.prepare(raw).dtype == torch.float32
    assert torch.equal(data.prepare(raw)[0], torch.tensor([0.0, 0.2, 1.0]))


def test_floats_stay_as_they_are() -> None:
    x = torch.tensor([[-3.0, 0.5, 300.0]] * 4)
    assert torch.equal(Dataset(x, Y, x, Y, 3).prepare(x), x)


@pytest.mark.parametrize("lead", [(), (4,), (5, 2)], ids=["one", "a batch", "a stack of batches"])
def test_standardized_by_channel(lead: tuple[int, ...]) -> None:
    raw = torch.full((4, 2, 3, 3), 255, dtype=torch.uint8)
    raw[:, 1] = 0
    data = Dataset(raw, Y, raw, Y, 3, mean=(0.5, 0.25), std=(0.25, 0.5))
    seen = data.prepare(raw[0].expand(*lead, 2, 3, 3))
    assert seen.shape == (*lead, 2, 3, 3)
    assert (seen[..., 0, :, :] == 2.0).all()  # (1 − 0.5) / 0.25
    assert (seen[..., 1, :, :] == -0.5).all()  # (0 − 0.25) / 0.5


def test_standardized_by_feature_where_inputs_are_flat() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0]] * 4)
    data = Dataset(x, Y, x, Y, 3, mean=(1.0, 1.0, 1.0), std=(1.0, 2.0, 4.0))
    assert torch.equal(data.prepare(x), torch.tensor([[0.0, 0.5, 0.5]] * 4))


def test_from_arrays_takes_lists_arrays_and_tensors() -> None:
    data = from_arrays([[1, 2], [3, 4]], np.array([0, 1], dtype=np.uint8), torch.tensor([[5, 6]]), [1])
    assert data.x.dtype == data.test_x.dtype == torch.float32
    assert data.x.tolist() == [[1, 2], [3, 4]]
    assert data.test_x.tolist() == [[5, 6]]
    assert data.y.dtype == torch.int64
    assert data.y.tolist() == [0, 1]


def test_from_arrays_keeps_bytes_as_bytes_and_halves_doubles() -> None:
    data = from_arrays(np.zeros((2, 1), np.uint8), [0, 1], np.zeros((2, 1), np.uint8), [0, 1])
    assert data.x.dtype == torch.uint8
    assert from_arrays(np.zeros((2, 1)), [0, 1], np.zeros((2, 1)), [0, 1]).x.dtype == torch.float32


def test_from_arrays_counts_classes_in_both_parts_unless_told() -> None:
    x = np.zeros((2, 1))
    assert from_arrays(x, [0, 1], x, [0, 4]).classes == 5
    assert from_arrays(x, [0, 6], x, [0, 4]).classes == 7
    assert from_arrays(x, [0, 1], x, [0, 4], classes=10).classes == 10
    with pytest.raises(DataError, match="test labels: 0 to 4, but there are 2 classes"):
        from_arrays(x, [0, 1], x, [0, 4], classes=2)


def test_labels_of_any_shape_and_type() -> None:
    x = np.zeros((2, 1))
    floats = from_arrays(x, np.array([0.5, 1.0]), x, np.array([0.0, 1.0]))
    assert floats.y.dtype == torch.float32
    assert floats.classes is None
    assert floats.outputs == 1
    assert from_arrays(x, np.zeros((2, 3))).outputs == 3
    tree = from_arrays({"a": x, "b": np.zeros((2, 4), np.int64)}, (np.array([1.0, 2.0]), [0, 1]))
    assert tree.x["b"].dtype == torch.int64
    assert len(tree) == 2
    with pytest.raises(DataError, match="this needs one integer label per example"):
        _ = floats.labels
    with pytest.raises(DataError, match="labels: some are not finite"):
        from_arrays(x, np.array([0.5, np.nan]))
    with pytest.raises(DataError, match="give both test_x and test_y"):
        from_arrays(x, [0, 1], x)
    with pytest.raises(DataError, match="2, 3 examples with 2 labels"):
        from_arrays((x, np.zeros((3, 1))), [0, 1])
    with pytest.raises(DataError, match=r"one integer per example expected, got torch\.float32"):
        from_arrays(x, np.array([0.5, 1.0]), classes=2)


def test_from_arrays_refuses_empty_parts() -> None:
    x, none = np.zeros((2, 1)), np.zeros(0, np.int64)
    with pytest.raises(DataError, match="training data: 0 examples"):
        from_arrays(x[:0], none, x, [0, 1])
    with pytest.raises(DataError, match="test data: 0 examples"):
        from_arrays(x, [0, 1], x[:0], none, classes=2)


def test_from_arrays_names_the_empty_part_also_when_it_counts_classes() -> None:
    x = np.zeros((2, 1))
    with pytest.raises(DataError) as caught:
        from_arrays(x, [0, 1], x[:0], np.zeros(0, np.int64))
    assert "test data: 0 examples" in str(caught.value)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_tokens_stay_integers(dtype: Any) -> None:
    x = np.array([[0, 4], [2, 3]], dtype=dtype)
    data = from_arrays(x, [0, 1], x[:1], [1], vocabulary=5)
    assert data.x.dtype == (torch.uint8 if dtype is np.uint8 else torch.int64), "a byte a token is kept as that"
    seen = data.prepare(data.x[None])
    assert seen.dtype == torch.int64
    assert seen.tolist() == [[[0, 4], [2, 3]]]
    assert from_arrays(x.astype(np.int64), [0, 1], x[:1], [1]).x.dtype == torch.float32, "numbers unless told"


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([[0, 5]], "tokens: 0 to 5, but the vocabulary is 5: 0 to 4"),
        ([[-1, 2]], "tokens: -1 to 2"),
        ([[0.0, 1.0]], r"tokens: integers expected \(uint8 or int64\), got torch.float32"),
    ],
)
def test_invalid_tokens_are_rejected(x: Any, message: str) -> None:
    with pytest.raises(DataError, match="training " + message):
        from_arrays(x, [0], [[0, 1]], [0], vocabulary=5)
    with pytest.raises(DataError, match="test " + message):
        from_arrays([[0, 1]], [0], x, [0], vocabulary=5)


def test_owners_are_one_integer_a_training_example() -> None:
    x = np.zeros((3, 1))
    owned = from_arrays(x, [0, 1, 0], x, [0, 1, 0], owners=np.array([5, 5, 1], np.int32)).owners
    assert owned is not None
    assert owned.tolist() == [5, 5, 1]
    assert from_arrays(x, [0, 1, 0], x, [0, 1, 0]).owners is None
    with pytest.raises(DataError, match=r"owners: one integer per training example .* of \[2\] for 3 examples"):
        from_arrays(x, [0, 1, 0], x, [0, 1, 0], owners=[5, 5])
    with pytest.raises(DataError, match=r"owners: integers expected, got torch\.float64"):
        from_arrays(x, [0, 1, 0], x, [0, 1, 0], owners=[0.5, 1.0, 2.0])


class Endless(TorchDataset[Any]):
    """A valid map-style data set: every index is answered, and only the length marks the end."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((2,), float(index)), index % 3


class Flow(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(2), 0), (torch.ones(2), 1)])


class SizedFlow(Flow):
    """A valid data set with a length but no index."""

    def __len__(self) -> int:
        return 2


def test_from_datasets_without_an_index_error_at_the_end() -> None:
    data = from_datasets(Endless(5), Endless(3))
    assert data.x.tolist() == [[i, i] for i in range(5)]
    assert data.y.tolist() == [0, 1, 2, 0, 1]
    assert (len(data.test_y), data.classes) == (3, 3)


def test_from_datasets_of_tensors_and_lists() -> None:
    pairs = TensorDataset(torch.arange(6, dtype=torch.uint8).view(3, 2), torch.tensor([2, 0, 1]))
    data = from_datasets(pairs, [(np.array([7, 8], np.uint8), 1)], classes=5)
    assert data.x.dtype == data.test_x.dtype == torch.uint8
    assert data.x.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert data.y.tolist() == [2, 0, 1]
    assert (data.test_x.tolist(), data.test_y.tolist()) == ([[7, 8]], [1])
    assert data.classes == 5


def test_from_datasets_that_can_only_be_iterated() -> None:
    data = from_datasets(Flow(), SizedFlow())
    assert data.x.tolist() == data.test_x.tolist() == [[0, 0], [1, 1]]
    assert data.y.tolist() == data.test_y.tolist() == [0, 1]


def test_from_datasets_refuses_an_empty_one() -> None:
    with pytest.raises(DataError, match="empty"):
        from_datasets(Endless(2), Endless(0))


def test_clients_have_their_parts() -> None:
    clients = federated([[3, 0], [1], [2]])
    assert clients.clients == 3
    assert clients.sizes.tolist() == [2, 1, 1]
    assert [clients.size(i) for i in range(3)] == [2, 1, 1]
    assert [clients.indices(i).tolist() for i in range(3)] == [[3, 0], [1], [2]]


def test_label_counts() -> None:
    assert federated([[3, 0], [1, 2]]).label_counts().tolist() == [[2, 0, 0], [0, 1, 1]]
    assert federated([[1]]).label_counts().tolist() == [[0, 1, 0]], "a label that nobody has still has a column"


def test_label_counts_of_many_clients_add_up() -> None:
    labels = np.random.default_rng(0).integers(7, size=500)
    x = np.zeros((500, 1))
    data = from_arrays(x, labels, x, labels)
    clients = PartitionedDataset.of(data, IID().split(labels, 13, np.random.default_rng(1)))
    counts = clients.label_counts()
    np.testing.assert_array_equal(counts.sum(axis=0), np.bincount(labels))
    np.testing.assert_array_equal(counts.sum(axis=1), clients.sizes)
    np.testing.assert_array_equal(counts[4], np.bincount(labels[clients.indices(4)], minlength=7))


def test_a_client_without_data_is_refused_and_named() -> None:
    with pytest.raises(DataError, match=r"client 1 has no data"):
        federated([[0, 1], [], [2]])
    data = Dataset(X, Y, X, Y, 3)
    with pytest.raises(DataError, match=r"client 4 has no data"):
        PartitionedDataset.of(data, IID().split(Y.numpy(), 6, np.random.default_rng(0)))


def test_an_index_beyond_the_data_is_rejected_by_name() -> None:
    with pytest.raises(DataError, match="client 1: index 4 in a dataset of 4 examples"):
        federated([[0], [1, 4]])
    with pytest.raises(DataError, match=r"client 0: index .* in a dataset of 4 examples"):
        federated([[0, -1], [1]])
    with pytest.raises(DataError, match="no clients"):
        federated([])


def test_a_negative_index_is_the_one_that_is_named() -> None:
    with pytest.raises(DataError) as caught:
        federated([[0, -1], [1]])
    assert "index -1" in str(caught.value)


def test_other_labels_for_some_clients() -> None:
    data = federated([[0, 1], [2], [3]])
    other = data.relabeled({0, 2}, lambda y: 2 - y)
    for client in range(3):
        assert other.indices(client).tolist() == data.indices(client).tolist()
        was, became = (each.dataset.y[each.indices(client)] for each in (data, other))
        assert torch.equal(became, was if client == 1 else 2 - was)
    assert other.dataset.x is data.dataset.x
    assert torch.equal(data.dataset.y, torch.tensor([0, 1, 2, 0])), "the data set itself is as it was"


def test_clients_with_poisoned_labels_get_copies_of_shared_examples() -> None:
    x = torch.arange(12.0).view(4, 3)
    data = PartitionedDataset.of(Dataset(x, Y, x, Y, 3, owners=Y), [[0, 1, 1], [1], [2, 3], [3, 0]])
    other = data.relabeled({0, 2}, lambda y: 2 - y)
    for client in range(4):
        one, two = data.indices(client), other.indices(client)
        assert torch.equal(other.dataset.x[two], x[one])
        assert torch.equal(other.dataset.y[two], 2 - Y[one] if client in (0, 2) else Y[one])
    assert len(other.dataset.y) == 4 + 3, "0, 1 and 3 are shared"
    assert data.relabeled(range(4), lambda y: 2 - y).dataset.x is x, "nobody else has any"
