"""FEMNIST in the files that LEAF's scripts write."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.data import DATASETS, FEMNIST
from offbeat.runs import api, config


def write(place: pathlib.Path, users: dict[str, list[int]]) -> None:
    """Write a file with images that are filled with a hundredth of their label."""
    place.parent.mkdir(parents=True, exist_ok=True)
    data: dict[str, Any] = {
        name: {"x": [[label / 100] * 784 for label in labels], "y": labels} for name, labels in users.items()
    }
    content = {"users": list(users), "num_samples": [len(y) for y in users.values()], "user_data": data}
    place.write_text(json.dumps(content))


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    write(tmp_path / "femnist/train/all_data_0_niid_0_keep_0_train_9.json", {"f0_1": [3, 61], "f0_2": [5]})
    write(tmp_path / "femnist/train/all_data_1_niid_0_keep_0_train_9.json", {"f1_9": [0, 0, 7]})
    write(tmp_path / "femnist/test/all_data_0_niid_0_keep_0_test_9.json", {"f1_9": [7], "f0_1": [3]})
    return tmp_path


def test_examples_of_all_files_with_their_writers(folder: pathlib.Path) -> None:
    data = FEMNIST().load(folder)
    assert data.y.tolist() == [3, 61, 5, 0, 0, 7]
    assert data.classes == 62
    assert isinstance(data.x, torch.Tensor)
    assert data.x.shape == (6, 1, 28, 28)
    assert data.x[:, 0, 5, 5].tolist() == pytest.approx([0.03, 0.61, 0.05, 0, 0, 0.07])
    assert data.owners is not None
    assert data.owners.tolist() == [0, 0, 1, 2, 2, 2]
    assert data.test_owners is not None
    assert data.test_owners.tolist() == [2, 0]


def test_writers_that_are_only_tested_have_no_client(folder: pathlib.Path) -> None:
    write(folder / "femnist/test/other.json", {"f9_9": [1]})
    assert FEMNIST().load(folder).test_owners is None, "a split by user"


def test_a_client_per_writer(folder: pathlib.Path) -> None:
    table = {"data": {"name": "femnist", "partition": "natural"}, "rounds": 2, "client": {"batch_size": 2}}
    table["scheduler"] = {"concurrency": 2, "buffer": 1}
    assert DATASETS["femnist"] is FEMNIST
    assert api.execute(config.parse(table), data_dir=folder).summary["clients"] == 3


def test_missing_and_damaged_files_are_explained(folder: pathlib.Path) -> None:
    (folder / "femnist/test/bad.json").write_text('{"user_data": {"a": {"x": [[1, 2]], "y": [0]}}}')
    with pytest.raises(ob.DataError, match=r"bad\.json is not a file of LEAF's FEMNIST"):
        FEMNIST().load(folder)
    for place in (folder / "femnist/test").iterdir():
        place.unlink()
    with pytest.raises(ob.DataError, match=r"test has no JSON files\. Run preprocess\.sh of LEAF .* OFFBEAT_DATA"):
        FEMNIST().load(folder)
