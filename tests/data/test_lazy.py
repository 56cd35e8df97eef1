"""Examples that are read when they are needed."""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import interrupt_after
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import offbeat as ob
from offbeat.data.lazy import Reader, seeded


class Numbers:
    """A map-style data set; with noise, every access draws from all generators that transforms use."""

    def __init__(self, count: int, noise: float = 0.0, first: int = 0) -> None:
        rng = np.random.default_rng(first)
        self.x = torch.from_numpy(rng.normal(size=(count, 4)).astype(np.float32))
        self.targets = (self.x[:, 0] > 0).long().tolist()
        self.noise, self.reads = noise, 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.reads += 1
        drawn = random.random() + float(np.random.random()) + float(torch.rand(()))  # noqa: NPY002
        return self.x[index] + self.noise * drawn, self.targets[index]


def settings(data: ob.Dataset, **change: Any) -> dict[str, Any]:
    base = {
        "data": data, "clients": 4, "model": lambda: nn.Linear(4, 2), "algorithm": ob.FedBuff(), "evaluation": 2,
        "scheduler": ob.Buffered(concurrency=3, buffer=2), "client": ob.SGD(lr=0.2, batch_size=8), "rounds": 6,
    }  # fmt: skip
    return base | change


def test_lazy_reading_gives_what_memory_gives() -> None:
    train, test = Numbers(64), Numbers(32, first=1)
    lazy = ob.run(**settings(ob.from_datasets(train, test, lazy=True), executor="sequential"))
    eager = ob.run(**settings(ob.from_datasets(train, test), executor="sequential"))
    assert torch.equal(lazy.x, eager.x)
    assert [line["accuracy"] for line in lazy.evaluations] == [line["accuracy"] for line in eager.evaluations]


def test_random_transforms_are_not_frozen_and_can_be_repeated(tmp_path: pathlib.Path) -> None:
    train, test = Numbers(64, noise=0.5), Numbers(32, first=1)
    with pytest.raises(ob.DataError, match="transforms its examples at random"):
        ob.from_datasets(train, test)
    data = ob.from_datasets(train, test, lazy=True)
    runs = [ob.run(**settings(data, executor=name)) for name in ("sequential", "sequential", "processes")]
    assert torch.equal(runs[0].x, runs[1].x)
    assert torch.equal(runs[0].x, runs[2].x)
    reader = Reader(train)
    assert not torch.equal(reader.read([3], 1)[0], reader.read([3], 2)[0])
    assert torch.equal(reader.read([3], 1)[0], reader.read([3], 1)[0])


@pytest.mark.parametrize("executor", ["sequential", "processes"])
def test_an_interrupted_run_reads_what_it_would_have_read(tmp_path: pathlib.Path, executor: str) -> None:
    change = {"executor": executor, "rounds": 12}
    data = ob.from_datasets(Numbers(64, noise=0.5), Numbers(32, first=1), lazy=True)
    whole = ob.run(**settings(data, **change))
    with pytest.raises(KeyboardInterrupt):
        ob.run(**settings(data, **change), out=tmp_path / "run", watch=interrupt_after(5))
    resumed = ob.run(**settings(data, **change), out=tmp_path / "run", resume=True)
    assert torch.equal(resumed.x, whole.x)
    assert [line["loss"] for line in resumed.evaluations] == [line["loss"] for line in whole.evaluations]


class Failing(Numbers):
    """A data set that fails after some time."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.reads > 200:
            raise OSError("disk failure")
        return super().__getitem__(index)


def test_a_data_set_that_fails_in_mid_run_ends_it_as_failed(tmp_path: pathlib.Path) -> None:
    data = ob.from_datasets(Failing(64), Numbers(8, first=1), lazy=True)
    change = {"rounds": 50, "evaluation": 1, "executor": "sequential"}
    with pytest.raises(ob.DataError, match="examples cannot be read: OSError: disk failure"):
        ob.run(**settings(data, **change), out=tmp_path / "run")
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "failed"
    assert status["error"] == "examples cannot be read: OSError: disk failure"


def test_reading_leaves_the_global_generators_alone() -> None:
    torch.manual_seed(0)
    random.seed(0)
    before = torch.get_rng_state(), random.getstate()
    with seeded(5):
        torch.rand(3), random.random()
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


def test_a_stack_is_refused_with_the_reason() -> None:
    data = ob.from_datasets(Numbers(64), Numbers(32), lazy=True)
    with pytest.raises(ob.ConfigError, match="examples are read when they are needed"):
        ob.run(**settings(data, executor="vectorized"))


def test_labels_for_partitions() -> None:
    data = ob.from_datasets(Numbers(64), Numbers(32), lazy=True)
    assert data.has_class_labels
    result = ob.run(**settings(data, partition=ob.partitions.LabelShards(classes=1), rounds=2))
    assert result.summary["clients"] == 4
    pairs = [(torch.ones(4), 1)] * 8
    unknown = ob.from_datasets(pairs, lazy=True, classes=2)
    assert not unknown.has_class_labels
    with pytest.raises(ob.ConfigError, match="LabelShards distributes class labels"):
        ob.run(**settings(unknown, partition=ob.partitions.LabelShards(classes=1)))
    assert ob.run(**settings(unknown, rounds=1)).summary["rounds"] == 1


class Sentences:
    """Sequences of different lengths."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> list[int]:
        return [(index + i) % 5 for i in range(3 + index % 4)]


def padded(sentences: list[list[int]]) -> tuple[dict[str, Tensor], Tensor]:
    tokens = pad_sequence([torch.tensor(each) for each in sentences], batch_first=True)
    mask = pad_sequence([torch.ones(len(each)) for each in sentences], batch_first=True)
    labels = torch.where(mask > 0, (tokens + 1) % 5, -100)
    return {"tokens": tokens, "mask": mask}, labels


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(5, 8), nn.Linear(8, 5)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.out(self.embed(tokens) * mask[..., None])
        return out


def test_sequences_of_different_lengths_are_padded_by_the_users_collate() -> None:
    data = ob.from_datasets(Sentences(), Sentences(), lazy=True, collate=padded)
    result = ob.run(
        **settings(
            data, model=Masked, task="language-modeling", client=ob.SGD(lr=2.0, batch_size=4, epochs=3), rounds=10
        )
    )
    assert result.evaluations[-1]["perplexity"] < 0.5 * result.evaluations[0]["perplexity"]
    assert result.summary["metric"] == "perplexity"


def test_wrong_data_sets_get_a_clear_message() -> None:
    with pytest.raises(ob.DataError, match="a batch is Tensor; expected"):
        ob.run(**settings(ob.from_datasets([torch.ones(4)] * 8, lazy=True, classes=2)))
    with pytest.raises(ob.DataError, match="pass lazy=True"):
        ob.from_datasets(Numbers(4), labels=[0, 1, 0, 1])
    with pytest.raises(ob.DataError, match="examples cannot be read: IndexError"):
        Reader([1]).read([5], 0)
