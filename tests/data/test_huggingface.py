"""Data sets of Hugging Face, and federated data sets and partitioners of Flower Datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

import offbeat as ob
from offbeat.data.huggingface import is_federated, is_hugging_face, is_partitioner, partition_of
from offbeat.runs.data import Data

datasets: Any = pytest.importorskip("datasets", reason="needs the extra 'huggingface'")

rng = np.random.default_rng(0)
N = 60
CLASSES = rng.integers(3, size=N)


def rows(**columns: Any) -> Any:
    return datasets.Dataset.from_dict({name: list(values) for name, values in columns.items()})


def tokenized(count: int = N, shortest: int = 2) -> Any:
    """Sentences of different lengths whose first token tells the class."""
    lengths = [shortest + i % 4 for i in range(count)]
    tokens = [[1 + int(CLASSES[i])] + [4 + (i + j) % 3 for j in range(length - 1)] for i, length in enumerate(lengths)]
    masks = [[1] * length for length in lengths]
    text = ["some text"] * count
    return rows(text=text, input_ids=tokens, attention_mask=masks, label=CLASSES[:count].tolist())


def settings(data: Any, **change: Any) -> dict[str, Any]:
    base = {
        "data": data, "clients": 4, "algorithm": ob.FedBuff(), "scheduler": ob.Buffered(concurrency=3, buffer=2),
        "client": ob.SGD(lr=0.5, batch_size=8, epochs=2), "evaluation": 4, "rounds": 12,
    }  # fmt: skip
    return base | change


class Sentence(nn.Module):
    """A classifier with the interface of Hugging Face's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(8, 16, padding_idx=0), nn.Linear(16, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        mask = attention_mask[..., None]
        return {"logits": self.head((self.embed(input_ids) * mask).sum(dim=1) / mask.sum(dim=1))}


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_tokenized_text_is_padded_with_its_mask(executor: str) -> None:
    splits = datasets.DatasetDict({"train": tokenized(), "test": tokenized(20, shortest=4)})
    result = ob.run(**settings(splits, model=Sentence, executor=executor))
    assert result.accuracy > 0.9 > 0.6 > result.evaluations[0]["accuracy"]


def test_padding() -> None:
    data = ob.from_hugging_face(tokenized(), tokenized(20, shortest=4))
    assert list(data.x) == ["input_ids", "attention_mask"], "text is no number"
    assert data.x["input_ids"].shape == (N, 7), "as long as the longest sequence of both splits"
    assert data.x["attention_mask"].sum(dim=1).tolist() == [2 + i % 4 for i in range(N)]
    assert not data.x["input_ids"][data.x["attention_mask"] == 0].any()
    assert data.classes == 3
    words = rows(tokens=[[1, 2], [3]], labels=[[2, 3], [4]])
    with pytest.raises(ob.DataError, match=r"'tokens': sequences of different lengths.*no column 'attention_mask'"):
        ob.from_hugging_face(words)
    assert ob.from_hugging_face(words, pad=9).x.tolist() == [[1, 2], [3, 9]]
    assert ob.from_hugging_face(words, pad=9).y.tolist() == [[2, 3], [4, -100]]


def test_lazy_rows_are_padded_per_batch_and_train_alike() -> None:
    eager = ob.run(**settings(ob.from_hugging_face(tokenized()), model=Sentence, executor="sequential"))
    data = ob.from_hugging_face(tokenized(), lazy=True)
    assert data.reader is not None
    assert data.reader.read([0, 4], 0)[0]["input_ids"].shape == (2, 2), "as long as the longest sequence of the batch"
    lazy = ob.run(**settings(data, model=Sentence, executor="sequential"))
    torch.testing.assert_close(lazy.x, eager.x, rtol=1e-5, atol=1e-6)  # sums over padding round differently
    assert data.has_class_labels, "for partitions by label"


def test_images() -> None:
    pixels = rng.integers(256, size=(6, 5, 4, 3), dtype=np.uint8)
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(num_classes=7)})
    images = datasets.Dataset.from_dict({"img": [Image.fromarray(p) for p in pixels], "label": [0, 1, 2] * 2}, features)
    data = ob.from_hugging_face(images)
    assert torch.equal(data.x, torch.from_numpy(pixels).permute(0, 3, 1, 2))
    assert data.x.dtype == torch.uint8
    assert data.classes == 7, "as the data set declares, though some are absent"
    gray = datasets.Dataset.from_dict({"img": [Image.fromarray(p[..., 0]) for p in pixels], "label": [0, 1, 2] * 2},
                                      features)  # fmt: skip
    assert torch.equal(ob.from_hugging_face(gray).x[:, 0], torch.from_numpy(pixels[..., 0]))
    lazy = ob.from_hugging_face(images, lazy=True)
    assert lazy.reader is not None
    assert torch.equal(lazy.reader.read([2, 4], 0)[0], data.prepare(data.x[[2, 4]]))


def test_a_transform_of_the_data_set_is_respected() -> None:
    """One that is random must not be frozen."""

    def noisy(batch: dict[str, Any]) -> dict[str, Any]:
        values = torch.as_tensor(batch["x"]) * 2
        return {"x": values + torch.rand_like(values), "label": batch["label"]}

    table = rows(x=[[1.0, 2.0]] * 8, label=[0, 1] * 4)
    doubled = table.with_transform(lambda batch: {"x": torch.as_tensor(batch["x"]) * 2, "label": batch["label"]})
    assert ob.from_hugging_face(doubled).x.tolist() == [[2.0, 4.0]] * 8
    with pytest.raises(ob.DataError, match=r"transforms its examples at random.*lazy=True"):
        ob.from_hugging_face(table.with_transform(noisy))
    lazy = ob.from_hugging_face(table.with_transform(noisy), lazy=True)
    first, second = (ob.run(**settings(lazy, model=lambda: nn.Linear(2, 2), clients=3, rounds=3)) for _ in range(2))
    assert torch.equal(first.x, second.x), "random, but the same in every run"


def test_tabular_columns() -> None:
    table = rows(age=range(6), height=[1.5] * 6, name=list("abcdef"), tall=[True, False] * 3, pay=np.arange(6.0))
    data = ob.from_hugging_face(table, label="pay")
    assert data.x.tolist() == [[float(i), 1.5, float(i % 2 == 0)] for i in range(6)]
    assert data.y.dtype == torch.float32
    several = ob.from_hugging_face(table, inputs=["height"], label=["tall", "age"])
    assert several.x.shape == (6, 1)
    assert several.y.tolist() == [[i % 2 == 0, i] for i in range(6)]
    by_name = ob.from_hugging_face(table, label="tall", owners="name")
    assert by_name.owners is not None
    assert by_name.owners.tolist() == list(range(6))
    assert by_name.classes == 2
    result = ob.run(
        **settings(
            data, model=lambda: nn.Linear(3, 1), task="regression", client=ob.SGD(lr=1e-3, batch_size=2), clients=3
        )
    )
    assert result.evaluations[-1]["mae"] < result.evaluations[0]["mae"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": "z"}, "no column 'z'; the data set has x, text, label"),
        ({"label": "y"}, "no column 'y'"),
        ({"inputs": "text"}, "column 'text': no array of numbers"),
        ({"train": rows(x=[1.0])}, "no column 'label' or 'labels'; pass label=…, one of x"),
        ({"train": rows(text=["a"], label=[1])}, "no input column holds numbers; the data set has text, label"),
        ({"train": {"test": rows(x=[1.0], label=[0])}}, "no split 'train'; the data set has test"),
        ({"train": rows(x=[], label=[])}, "the dataset is empty"),
        ({"train": rows(x=[1.0], label=[0]).to_iterable_dataset()}, "without streaming"),
        ({"train": rows(x=[[[1.0]], [[1.0], [2.0]]], label=[0, 1])}, "examples of different shapes; resize them"),
    ],
)
def test_wrong_columns_get_a_clear_message(change: dict[str, Any], message: str) -> None:
    table = rows(x=[1.0, 2.0], text=["a", "b"], label=[0, 1])
    with pytest.raises(ob.DataError, match=message):
        ob.from_hugging_face(**({"train": table} | change))


class EveryNth:
    """A partitioner with the interface of Flower Datasets', whose data set can be assigned only once."""

    def __init__(self, num_partitions: int) -> None:
        self._dataset: Any = None
        self._count = num_partitions

    @property
    def dataset(self) -> Any:
        return self._dataset

    @dataset.setter
    def dataset(self, value: Any) -> None:
        assert self._dataset is None, "assigned twice"
        self._dataset = value

    @property
    def num_partitions(self) -> int:
        return self._count

    def load_partition(self, partition_id: int) -> Any:
        return self.dataset.select(range(partition_id, len(self.dataset), self._count))


class ByClass(EveryNth):
    def load_partition(self, partition_id: int) -> Any:
        return self.dataset.filter(lambda row: row["label"] == partition_id)


class Sorted(EveryNth):
    """A partitioner that sorts its data when it is used first, as Flower's ShardPartitioner."""

    sorted = False

    def load_partition(self, partition_id: int) -> Any:
        if not self.sorted:
            order = np.argsort(self._dataset["label"][:], kind="stable")
            self._dataset, self.sorted = self._dataset.select(order), True
        return super().load_partition(partition_id)


class ByColumn(EveryNth):
    def load_partition(self, partition_id: int) -> Any:
        return self.dataset.select_columns(["label"])


class Federated:
    """The interface of Flower's `FederatedDataset`."""

    def __init__(self, splits: dict[str, Any], partitioner: Any) -> None:
        self.splits, self.partitioners = splits, {"train": partitioner}
        partitioner.dataset = splits["train"]

    def load_split(self, split: str) -> Any:
        if split not in self.splits:
            raise ValueError(f"there is no split {split!r}")
        return self.splits[split]

    def load_partition(self, partition_id: int) -> Any:
        return self.partitioners["train"].load_partition(partition_id)


def test_a_partitioner_is_a_partition() -> None:
    table = tokenized()
    partitioner = EveryNth(5)
    data = Data(
        source=ob.runs.custom.CustomSource(make=table), partition=ob.runs.custom.CustomPartition(make=partitioner)
    )
    for _ in range(2):  # the partitioner is not changed
        loaded = data.load(None, 0)  # type: ignore[arg-type]
        assert loaded.clients == 5
        assert [loaded.indices(i).tolist() for i in range(5)] == [list(range(i, N, 5)) for i in range(5)]
    partitioner.dataset = table
    assert [part.tolist() for part in partition_of(partitioner, loaded.dataset)] == [
        list(range(i, N, 5)) for i in range(5)
    ]
    with pytest.raises(ob.ConfigError, match="7 clients, but the partition has 5 parts"):
        ob.run(**settings(table, model=Sentence, partition=EveryNth(5), clients=7))
    with pytest.raises(ob.ConfigError, match=r"data\.partition: ByColumn cannot divide the data by example"):
        ob.run(**settings(table, model=Sentence, partition=ByColumn(5), clients=None))


def test_a_partitioner_by_label_divides_arrays_too() -> None:
    data = ob.from_arrays(rng.normal(size=(N, 4)), CLASSES)
    parts = partition_of(ByClass(3), data)
    assert [set(CLASSES[part]) for part in parts] == [{0}, {1}, {2}]
    result = ob.run(**settings(data, model=lambda: nn.Linear(4, 3), partition=ByClass(3), clients=None, rounds=1))
    assert result.summary["clients"] == 3


def test_a_federated_data_set_brings_its_partition() -> None:
    splits = {"train": tokenized(), "test": tokenized(20)}
    federated = Federated(splits, EveryNth(6))
    assert is_federated(federated)
    assert is_hugging_face(federated)
    assert is_partitioner(federated.partitioners["train"])
    others: list[Any] = [[[0, 1]], {}, torch.ones(2), ob.FedBuff()]
    assert not any(is_partitioner(each) or is_hugging_face(each) for each in others)
    result = ob.run(**settings(federated, model=Sentence, clients=None))
    same = [list(range(i, N, 6)) for i in range(6)]
    plain = ob.run(**settings(ob.from_hugging_face(splits["train"], splits["test"]), model=Sentence, clients=None,
                              partition=same))  # fmt: skip
    assert torch.equal(result.x, plain.x)
    assert result.accuracy == plain.accuracy
    other = ob.run(**settings(splits["train"], model=Sentence, clients=None, partition=federated))
    assert torch.equal(other.x, plain.x)
    lonely = ob.from_hugging_face(Federated({"train": tokenized()}, EveryNth(2)))
    assert lonely.test_x is None


def test_a_partitioner_that_has_divided_other_data_is_refused() -> None:
    table = rows(x=rng.normal(size=N).tolist(), label=CLASSES.tolist())
    data, partitioner = ob.from_hugging_face(table), Sorted(4)
    partitioner.dataset = table
    first = partition_of(partitioner, data)
    assert CLASSES[np.stack(first, axis=1).flatten()].tolist() == sorted(CLASSES)
    partitioner.load_partition(0)
    with pytest.raises(ob.ConfigError, match="Sorted has divided other data, or the same in another order"):
        partition_of(partitioner, data)


def made() -> Any:
    return datasets.DatasetDict({"train": tokenized(), "validation": tokenized(20)})


def test_a_function_in_toml_may_return_one() -> None:
    from offbeat.runs import config

    experiment = config.parse({"data": {"name": "tests.data.test_huggingface:made", "clients": 3}})
    data = experiment.data.load(None, 0).dataset  # type: ignore[arg-type]
    assert len(data) == N
    assert len(data.test_y) == 20


def test_losses_of_padded_labels_do_not_count() -> None:
    words = rows(input_ids=[[1, 2, 3], [3]], attention_mask=[[1, 1, 1], [1]], labels=[[2, 3, 4], [4]])
    data = ob.from_hugging_face(words)
    out = torch.randn(2, 3, 5)
    losses = ob.tasks.LanguageModeling().loss(out, data.y)
    torch.testing.assert_close(losses[1], functional.cross_entropy(out[1, :1], torch.tensor([4])))
