"""What users have becomes tensors, or gets one clear message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import offbeat as ob
from offbeat.data.convert import as_labels, stacked
from offbeat.data.lazy import Reader

X = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize(
    "x",
    [
        X,
        X.tolist(),
        [torch.as_tensor(row) for row in X],
        [*X],
        torch.as_tensor(X),
        X.astype(np.float64),
    ],
    ids=["array", "lists", "tensors", "arrays", "tensor", "double"],
)
def test_all_forms_of_an_array(x: Any) -> None:
    data = ob.from_arrays(x, [0, 1, 2, 0])
    assert torch.equal(data.x, torch.as_tensor(X))
    assert data.classes == 3


def test_data_frames() -> None:
    """Their arrays cannot be written to."""
    pandas = pytest.importorskip("pandas", reason="needs the extra 'huggingface'")
    data = ob.from_arrays(pandas.DataFrame(X), pandas.Series([0, 1, 2, 0]))
    assert torch.equal(data.x, torch.as_tensor(X))
    assert data.classes == 3


def test_types_of_labels() -> None:
    """One truth value per example is a class; several stay as they are, and bytes stay bytes."""
    assert as_labels([True, False], "y").dtype == torch.int64
    assert ob.from_arrays(X, [True, False, True, True]).classes == 2
    assert as_labels([[True, False]], "y").dtype == torch.bool
    assert as_labels(np.zeros((2, 3), dtype=np.uint8), "y").dtype == torch.uint8
    assert as_labels(np.zeros(2, dtype=np.float64), "y").dtype == torch.float32
    assert ob.from_arrays(X, [-1, 0, 1, 2]).classes is None, "targets of a regression"


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([[1, 2], [1]], r"x: no array of numbers .*need a collate function.*collate=…"),
        ([torch.ones(2), torch.ones(3)], r"x: no array of numbers .*need a collate"),
        (["a", "b"], r"x: no array of numbers"),
        ({"words": [["a"], ["b"]]}, r"x 'words': no array of numbers"),
    ],
)
def test_what_is_no_array_gets_a_message(x: Any, message: str) -> None:
    with pytest.raises(ob.DataError, match=message):
        ob.from_arrays(x, [0, 1])


def test_stacked_examples() -> None:
    pairs: list[Any] = [({"a": torch.ones(2), "b": 1}, 0.5), ({"a": np.zeros(2, dtype=np.float32), "b": 2}, 1.5)]
    inputs, labels = stacked(pairs)
    assert inputs["a"].tolist() == [[1, 1], [0, 0]]
    assert inputs["b"].tolist() == [1, 2]
    assert labels.tolist() == [0.5, 1.5]
    assert [part.tolist() for part in stacked([[np.ones(1), 2], [np.zeros(1), 3]])] == [[[1], [0]], [2, 3]]
    assert stacked([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]


def padded(sentences: list[tuple[list[int], int]]) -> tuple[dict[str, Tensor], Tensor]:
    tokens = pad_sequence([torch.tensor(words) for words, _ in sentences], batch_first=True)
    mask = pad_sequence([torch.ones(len(words)) for words, _ in sentences], batch_first=True)
    return {"tokens": tokens, "mask": mask}, torch.tensor([label for _, label in sentences])


def test_a_collate_pads_sequences_in_memory() -> None:
    """To the longest one of both splits, because a stack needs one shape."""
    train, test = [([1, 2], 0), ([3], 1)], [([1, 2, 3, 4], 1)]
    data = ob.from_datasets(train, test, collate=padded)
    assert data.x["tokens"].tolist() == [[1, 2, 0, 0], [3, 0, 0, 0]]
    assert data.test_x["tokens"].tolist() == [[1, 2, 3, 4]]
    assert data.y.tolist() == [0, 1]
    assert data.test_y.tolist() == [1]
    with pytest.raises(ob.DataError, match=r"no array of numbers .*collate=…"):
        ob.from_datasets(train, test)


def test_dicts_as_examples() -> None:
    data = ob.from_datasets([{"values": X[i], "label": i % 2} for i in range(4)])
    assert torch.equal(data.x["values"], torch.as_tensor(X))
    assert data.classes == 2


class Broken:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == 2:
            raise OSError("disk failure")
        return torch.ones(3), 0


@pytest.mark.parametrize(
    ("collate", "message"),
    [
        (lambda items: 5, "a batch is int; expected"),
        (lambda items: (torch.ones(3, 2), torch.ones(3)), "tensors of length 3 for"),
        (lambda items: (torch.ones(4, 2), torch.tensor(1)), "tensors of length 0, 4 for"),
        (lambda items: ("a", "b"), "inputs: no array of numbers"),
        (lambda items: items[9], "collate failed: IndexError"),
    ],
)
def test_a_collate_that_returns_nonsense(collate: Any, message: str) -> None:
    pairs = [(torch.ones(3), 0)] * 4
    with pytest.raises(ob.DataError, match=message):
        ob.from_datasets(pairs, collate=collate)
    with pytest.raises(ob.DataError, match=message):
        Reader(pairs, collate=collate).read([0, 1, 2, 3], 0)


def test_an_example_that_cannot_be_read() -> None:
    with pytest.raises(ob.DataError, match="example 2 cannot be read: OSError: disk failure"):
        ob.from_datasets(Broken())


def test_lazy_examples_have_the_types_of_those_in_memory() -> None:
    pairs = [(np.full((1, 2, 2), i, dtype=np.uint8), np.float64(i)) for i in range(4)]
    eager, lazy = (ob.from_datasets(pairs, lazy=lazy) for lazy in (False, True))
    assert lazy.reader is not None
    x, y = lazy.reader.read([1, 3], 0)
    assert torch.equal(x, eager.prepare(eager.x[[1, 3]]))
    assert torch.equal(y, eager.y[[1, 3]])
    assert y.dtype == torch.float32
