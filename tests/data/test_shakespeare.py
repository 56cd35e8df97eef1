"""Plays as data: from a text to windows, owners and clients."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import torch
from tests.support import SHARED
from tests.support.data_files import Serve, md5

import offbeat as ob
from offbeat.data import Dataset, FederatedData, Shakespeare
from offbeat.data.text import CHARACTERS, encode, speeches, split_point, windows
from offbeat.errors import ConfigError, DataError
from offbeat.models import LR, LSTM
from offbeat.runs import config
from offbeat.runs.api import execute
from offbeat.runs.data import Data

PLAY = """First Citizen:
Before we proceed any further,
hear  me speak.

All:
Speak, speak.

First Citizen:
You are all resolved rather to die than to famish?

Nobody:

All:
Resolved. resolved.
"""


def decode(tokens: object) -> str:
    return "".join(CHARACTERS[int(i)] for i in np.asarray(tokens))


def long_play(lengths: dict[str, int]) -> str:
    """Return a play whose roles have the given numbers of characters, without repeated stretches of 80."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    return "\n\n".join(f"{name}:\n{''.join(rng.choice(letters, n))}" for name, n in lengths.items())


def written(folder: pathlib.Path, text: str, name: str = "input.txt") -> pathlib.Path:
    (folder / "shakespeare").mkdir()
    (folder / "shakespeare" / name).write_text(text, encoding="utf-8")
    return folder


def test_speeches_of_a_role_are_one_text() -> None:
    said = speeches(PLAY)
    assert list(said) == ["First Citizen", "All", "Nobody"]
    assert said["All"] == "Speak, speak. Resolved. resolved."
    assert said["First Citizen"].startswith("Before we proceed any further, hear me speak. You are all")
    assert said["Nobody"] == ""
    assert speeches(PLAY.replace("\n", "\r\n")) == said


def test_the_vocabulary_is_leaf_s() -> None:
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 80
    assert list(CHARACTERS) == sorted(CHARACTERS)
    assert decode(encode("sha$l é I? Yes!")) == "shal  I? Yes!"


@pytest.mark.parametrize("stride", [1, 3])
def test_windows_and_what_follows(stride: int) -> None:
    tokens = np.arange(10, dtype=np.uint8)
    x, y = windows(tokens, 4, stride)
    assert x.tolist() == [list(range(i, i + 4)) for i in range(0, 6, stride)]
    assert y.tolist() == [list(range(i + 1, i + 5)) for i in range(0, 6, stride)]
    assert [len(part) for part in windows(tokens[:4], 4, stride)] == [0, 0]
    assert windows(tokens[:5], 4, stride)[1].tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize("stride", [1, 7, 80, 100])
@pytest.mark.parametrize("length", [700, 4_001])
def test_no_test_label_was_seen_in_training(length: int, stride: int) -> None:
    positions = np.arange(length)  # of the characters themselves
    rows = np.lib.stride_tricks.sliding_window_view(positions, 81)[::stride]
    end, begin = split_point(len(rows), 80, stride, train=0.8)
    train, test = rows[:end], rows[begin:]
    assert end == int(0.8 * len(rows))
    assert test[:, -1].min() > train.max()
    assert test.min() >= train.max(), "inputs overlap in the last label at most"
    assert begin == 0 or rows[begin - 1].min() < train.max(), "and no window is left out without need"


def test_a_role_is_an_owner(tmp_path: pathlib.Path) -> None:
    lengths = {"LONG": 1000, "SHORT": 300, "MIDDLE": 700}
    play = long_play(lengths)
    data = Shakespeare().load(written(tmp_path, play))
    assert (data.shape, data.classes, data.vocabulary, data.x.dtype) == ((80,), 80, 80, torch.uint8)
    assert data.owners is not None
    trained = [int(0.8 * (n - 80)) for n in (1000, 700)]  # SHORT has no room for a test window
    assert data.owners.bincount().tolist() == trained
    assert len(data.test_y) == sum(n - 80 - t - 79 for n, t in zip((1000, 700), trained, strict=True))
    said = speeches(play)
    assert decode(data.x[0]) == said["LONG"][:80]
    assert CHARACTERS[int(data.y[0])] == said["LONG"][80]
    assert decode(data.x[trained[0]]) == said["MIDDLE"][:80]
    assert decode(data.test_x[-1]) + CHARACTERS[int(data.test_y[-1])] == said["MIDDLE"][-81:]


def test_small_roles_and_many_windows_can_be_left_out(tmp_path: pathlib.Path) -> None:
    folder = written(tmp_path, long_play({"LONG": 1000, "MIDDLE": 700}), "tinyshakespeare_input.txt")
    only = Shakespeare(min_examples=700).load(folder)
    assert only.owners is not None
    assert set(only.owners.tolist()) == {0}
    assert decode(Shakespeare(stride=10).load(folder).x[1]) == decode(Shakespeare().load(folder).x[10])
    with pytest.raises(DataError, match="none of the 2 roles has 5000 examples"):
        Shakespeare(min_examples=5000).load(folder)


def test_a_label_per_position_is_the_next_character(tmp_path: pathlib.Path) -> None:
    folder = written(tmp_path, long_play({"LONG": 2000, "MIDDLE": 700}))
    last, every = Shakespeare(stride=50).load(folder), Shakespeare(stride=50, targets="all").load(folder)
    assert torch.equal(last.x, every.x)
    assert torch.equal(every.x[:, 1:], every.y[:, :-1])
    assert torch.equal(every.y[:, -1].long(), last.y)
    assert (every.y.dtype, every.classes, every.outputs, every.shape) == (torch.uint8, None, 80, (80,))
    assert Shakespeare(length=20, stride=20, targets="all").load(folder).shape == (20,)


def test_a_language_model_from_a_toml_table(tmp_path: pathlib.Path) -> None:
    table = {
        "data": {"name": "shakespeare", "targets": "all", "length": 20, "stride": 20, "partition": "natural"},
        "model": {"name": "tests.data.test_shakespeare:next_character"}, "task": "language-modeling", "rounds": 8,
        "scheduler": {"name": "buffered", "concurrency": 2, "buffer": 2}, "algorithm": "fedbuff",
        "client": {"lr": 8.0, "batch_size": 8, "epochs": 4}, "evaluation": {"target": {"perplexity": 20.0}},
    }  # fmt: skip
    folder = written(tmp_path, long_play({"LONG": 3000, "MIDDLE": 2000}).translate({ord(c): "ab"[i % 2] for i, c in
                     enumerate("abcdefghijklmnopqrstuvwxyz")}))  # fmt: skip
    runs = []
    for executor in ("sequential", "vectorized"):
        runs.append(execute(config.parse(table | {"executor": executor}), data_dir=folder))
    torch.testing.assert_close(runs[0].x, runs[1].x, rtol=1e-4, atol=1e-5)
    first, last = runs[0].evaluations[0], runs[0].evaluations[-1]
    assert first["perplexity"] == pytest.approx(np.exp(first["loss"]))
    assert last["perplexity"] < 20 < 60 < first["perplexity"]
    assert runs[0].summary["target_seconds"] > 0


def next_character(vocabulary: int, classes: int) -> torch.nn.Module:
    return torch.nn.Embedding(vocabulary, classes)


def test_missing_and_damaged_files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    body = long_play({"LONG": 1000}).encode()
    monkeypatch.setattr(Shakespeare, "checksums", {"input.txt": md5(body)})
    monkeypatch.setattr(Shakespeare, "address", serve({}))
    with pytest.raises(DataError, match=r"Put these files into .*shakespeare: input\.txt"):
        Shakespeare().load(tmp_path)
    monkeypatch.setattr(Shakespeare, "address", serve({"input.txt": body}))
    assert len(Shakespeare().load(tmp_path).y) == 736
    (tmp_path / "shakespeare" / "input.txt").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(DataError, match="not readable UTF-8 text"):
        Shakespeare().load(tmp_path)


def owned() -> Dataset:
    rng = np.random.default_rng(0)
    x, y = rng.integers(6, size=(30, 5)), rng.integers(6, size=30)
    return ob.from_arrays(x, y, x, y, vocabulary=6, owners=np.repeat([3, 8, 9], 10))


def load(dataset: Dataset, clients: int | None, seed: int = 0) -> FederatedData:
    from offbeat.runs.custom import CustomSource

    return Data(source=CustomSource(make=dataset), clients=clients, partition=ob.partitions.Natural()).load(
        pathlib.Path(), seed
    )


def test_all_owners_are_clients_unless_fewer_are_asked_for() -> None:
    data = owned()
    assert [load(data, None).indices(i).tolist() for i in range(3)] == [list(range(i, i + 10)) for i in (0, 10, 20)]
    assert load(data, 2).clients == 2
    assert len({tuple(load(data, 1, seed).indices(0)) for seed in range(20)}) == 3, "drawn with the seed"
    with pytest.raises(ConfigError, match=r"data\.partition\.name: the data has 3 owners, too few for 4 clients"):
        load(data, 4)


def test_natural_needs_owners() -> None:
    table = {"data": {"name": "synthetic", "partition": "natural"}}
    with pytest.raises(ConfigError, match=r"data\.partition\.name: 'natural' needs data with owners"):
        config.parse(table).assemble()


@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
def test_tokens_run_with_every_executor(executor: str) -> None:
    result = ob.run(
        data=owned(),
        model=LSTM(embedding=2, hidden=3, layers=1),
        algorithm=ob.FedBuff(),
        partition=ob.partitions.Natural(),
        scheduler=ob.Buffered(concurrency=2, buffer=1),
        client=ob.SGD(lr=0.1, steps=2, batch_size=4),
        rounds=3,
        executor=executor,
    )
    assert np.isfinite(result.summary["accuracy"])


def test_models_and_data_must_fit() -> None:
    with pytest.raises(ConfigError, match=r"model\.name: lr takes numbers, not tokens"):
        ob.run(
            data=owned(),
            model=LR(),
            algorithm=ob.FedAvg(),
            partition=ob.partitions.Natural(),
            scheduler=ob.Rounds(concurrency=2),
            client=ob.SGD(batch_size=5),
        )
    table = {"data": {"name": "synthetic", "clients": 50}, "model": "lstm"}
    with pytest.raises(ConfigError, match=r"model\.name: lstm needs sequences of tokens, not numbers of shape \[32\]"):
        config.parse(table).assemble()


def test_a_custom_model_receives_the_vocabulary() -> None:
    def make(vocabulary: int, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Embedding(vocabulary, 2), torch.nn.Flatten(), torch.nn.Linear(2 * shape[0], classes)
        )

    result = ob.run(
        data=owned(),
        model=make,
        algorithm=ob.FedAvg(),
        partition=ob.partitions.Natural(),
        scheduler=ob.Rounds(concurrency=2),
        client=ob.SGD(batch_size=5),
        rounds=2,
    )
    assert result.summary["rounds"] == 2


REAL = SHARED / "data" / "shakespeare"


@pytest.mark.skipif(not REAL.is_dir(), reason="the real text is not in ../shared/data/shakespeare")
def test_the_real_text() -> None:
    data = Shakespeare().load(SHARED / "data")
    assert data.owners is not None
    assert int(data.owners.max()) + 1 == 183
    assert (len(data.y), len(data.test_y)) == (793_901, 184_114)
    said = decode(data.x[0])
    assert said.startswith("Before we proceed any further, hear me speak. You are all resolved rather to die")
    federated = Data(source=Shakespeare(), clients=100, partition=ob.partitions.Natural()).load(SHARED / "data", 0)
    assert federated.clients == 100
    assert federated.sizes.max() > 50 * federated.sizes.min(), "natural sizes are very unequal"


@pytest.mark.skipif(not REAL.is_dir(), reason="the real text is not in ../shared/data/shakespeare")
def test_a_short_run_on_the_real_text_learns() -> None:
    result = ob.run(
        data=Shakespeare(stride=500),
        model=LSTM(hidden=16, layers=1),
        algorithm=ob.FedAvg(),
        partition=ob.partitions.Natural(),
        clients=20,
        scheduler=ob.Rounds(concurrency=2),
        client=ob.SGD(lr=1.0, steps=5, batch_size=10),
        rounds=4,
        executor="sequential",
        data_dir=SHARED / "data",
    )
    assert result.evaluations[-1]["loss"] < 0.95 * result.evaluations[0]["loss"]
