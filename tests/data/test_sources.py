"""Data sets by name, except CIFAR-10."""

from __future__ import annotations

import gzip
import pathlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import SHARED
from tests.support.data_files import Serve, idx, listing, md5

from offbeat.data import CIFAR10, DATASETS, MNIST, Dataset, Digits, FashionMNIST, Shakespeare, Synthetic
from offbeat.errors import ConfigError, DataError

NOWHERE = pathlib.Path("/nowhere")
OFFICIAL = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


RNG = np.random.default_rng(0)
IMAGES, TEST_IMAGES = (RNG.integers(256, size=(n, 28, 28), dtype=np.uint8) for n in (12, 5))
LABELS, TEST_LABELS = (np.arange(n, dtype=np.uint8) % 10 for n in (12, 5))
BODIES = dict(zip(OFFICIAL, map(idx, (IMAGES, LABELS, TEST_IMAGES, TEST_LABELS)), strict=True))


def write(folder: pathlib.Path, gzipped: bool = True) -> None:
    folder.mkdir(parents=True)
    for name, body in BODIES.items():
        (folder / name.removesuffix("" if gzipped else ".gz")).write_bytes(gzip.compress(body) if gzipped else body)


def assert_is_the_made_up_one(data: Dataset) -> None:
    np.testing.assert_array_equal(data.x.numpy(), IMAGES[:, None])
    np.testing.assert_array_equal(data.test_x.numpy(), TEST_IMAGES[:, None])
    np.testing.assert_array_equal(data.y.numpy(), LABELS)
    np.testing.assert_array_equal(data.test_y.numpy(), TEST_LABELS)
    assert (data.shape, data.classes, data.x.dtype) == ((1, 28, 28), 10, torch.uint8)


@pytest.mark.parametrize("gzipped", [True, False])
def test_mnist_from_the_four_official_files(tmp_path: pathlib.Path, gzipped: bool) -> None:
    write(tmp_path / "mnist", gzipped)
    data = MNIST().load(tmp_path)
    assert_is_the_made_up_one(data)
    np.testing.assert_array_equal(data.prepare(data.x).numpy(), IMAGES[:, None].astype(np.float32) / 255)
    data.x.add_(1)  # a tensor over read-only memory would warn or crash here


def test_fashion_mnist_lies_in_a_folder_of_its_own(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "fashion-mnist")
    assert_is_the_made_up_one(FashionMNIST().load(tmp_path))


@pytest.mark.parametrize(("source", "mean", "std"), [(MNIST, 0.1307, 0.3081), (FashionMNIST, 0.2860, 0.3530)])
def test_standardized_on_request(tmp_path: pathlib.Path, source: type[MNIST], mean: float, std: float) -> None:
    write(tmp_path / source.directory)
    gray = torch.full((1, 1, 28, 28), 51, dtype=torch.uint8)
    for standardize, expected in ((False, 0.2), (True, (0.2 - mean) / std)):
        data = source(standardize=standardize).load(tmp_path)
        torch.testing.assert_close(data.prepare(gray), torch.full((1, 1, 28, 28), expected))


def test_mnist_downloads_what_is_missing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    packed = {name: gzip.compress(body, mtime=0) for name, body in BODIES.items()}
    sums = {name: md5(body) for name, body in packed.items()}
    monkeypatch.setattr(MNIST, "checksums", sums)
    monkeypatch.setattr(MNIST, "address", serve(packed))
    assert_is_the_made_up_one(MNIST().load(tmp_path))
    assert listing(tmp_path / "mnist") == sorted(OFFICIAL)
    monkeypatch.setattr(MNIST, "address", serve({}))  # the second time nothing is asked for
    assert_is_the_made_up_one(MNIST().load(tmp_path))


def test_mnist_with_a_wrong_checksum_leaves_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    monkeypatch.setattr(MNIST, "address", serve(dict.fromkeys(OFFICIAL, b"not the real one")))
    with pytest.raises(DataError, match=r"md5 .*, expected f68b3c2dcbeaaa9fbdd348bbdeb94873"):
        MNIST().load(tmp_path)
    assert listing(tmp_path / "mnist") == []


@pytest.mark.parametrize(("source", "folder"), [(MNIST, "mnist"), (FashionMNIST, "fashion-mnist")])
def test_without_a_network_the_files_and_their_folder_are_listed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, nobody: str, source: type[MNIST], folder: str
) -> None:
    monkeypatch.setattr(source, "address", nobody)
    with pytest.raises(DataError) as caught:
        source().load(tmp_path)
    assert f"Put these files into {tmp_path / folder}: {', '.join(OFFICIAL)}" in str(caught.value)


def test_a_damaged_file_of_mnist_is_named(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "mnist")
    path = tmp_path / "mnist" / OFFICIAL[2]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError) as caught:
        MNIST().load(tmp_path)
    assert str(path) in str(caught.value)


def test_labels_that_do_not_fit_the_images(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "mnist", gzipped=False)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(idx(LABELS))
    with pytest.raises(DataError, match="test data: 5 examples with 12 labels"):
        MNIST().load(tmp_path)


@pytest.mark.skipif(not (SHARED / "data" / "mnist").is_dir(), reason="the real MNIST is not in ../shared/data/mnist")
def test_the_real_mnist() -> None:
    """Compare with published figures: sizes, label counts, mean 0.1307 and standard deviation 0.3081."""
    data = MNIST().load(SHARED / "data")
    assert (tuple(data.x.shape), tuple(data.test_x.shape)) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert data.y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.test_y.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    spread, mean = torch.std_mean(data.prepare(data.x))
    assert (round(float(mean), 4), round(float(spread), 4)) == (0.1307, 0.3081)


def test_digits_are_split_without_overlap_and_without_loss() -> None:
    from sklearn.datasets import load_digits

    data = Digits().load(NOWHERE)
    assert (len(data.y), len(data.test_y)) == (1437, 360)
    assert (data.shape, data.classes) == ((1, 8, 8), 10)
    assert (float(data.x.min()), float(data.x.max())) == (0.0, 1.0)

    bunch: Any = load_digits()
    pairs = zip(bunch.images, bunch.target, strict=True)
    original = Counter((image.astype(np.uint8).tobytes(), int(y)) for image, y in pairs)
    parts = [
        Counter(((16 * image).to(torch.uint8).numpy().tobytes(), int(y)) for image, y in zip(x, y_, strict=True))
        for x, y_ in ((data.x, data.y), (data.test_x, data.test_y))
    ]
    assert parts[0] + parts[1] == original, "together they are all digits, each as often as it was"
    assert not parts[0] & parts[1]
    assert data.test_y.bincount(minlength=10).min() >= 20, "shuffled: the test part knows every digit"


def test_digits_are_always_the_same() -> None:
    first, second = Digits().load(NOWHERE), Digits().load(NOWHERE)
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.test_y, second.test_y)


def nearest_centre_accuracy(data: Dataset) -> float:
    """Learn without offbeat: classify by the nearest class mean."""
    centers = torch.stack([data.x[data.y == label].mean(dim=0) for label in range(data.outputs)])
    return float((torch.cdist(data.test_x, centers).argmin(dim=1) == data.test_y).float().mean())


def test_synthetic_has_the_sizes_asked_for_and_balanced_labels() -> None:
    data = Synthetic(examples=1003, test_examples=17, features=5, classes=4).load(NOWHERE)
    assert (tuple(data.x.shape), tuple(data.test_x.shape), data.classes) == ((1003, 5), (17, 5), 4)
    assert data.x.dtype == torch.float32
    assert sorted(data.y.bincount().tolist()) == [250, 251, 251, 251]
    assert sorted(data.test_y.bincount().tolist()) == [4, 4, 4, 5]
    assert (data.y[1:] < data.y[:-1]).float().mean() > 0.25, "in no order"


def test_synthetic_follows_from_its_own_seed() -> None:
    first, again, other = (Synthetic(examples=50, test_examples=20, seed=s).load(NOWHERE) for s in (1, 1, 2))
    for field in ("x", "y", "test_x", "test_y"):
        assert torch.equal(getattr(first, field), getattr(again, field))
    assert not torch.equal(first.x, other.x)
    assert not torch.equal(first.x[:20], first.test_x), "test examples are new ones"


def test_synthetic_is_learnable_and_as_hard_as_its_noise() -> None:
    """Two centers are about 3·√2 apart, so neighbors are confused with probability Φ(−1.5·√2 / noise)."""
    accuracies = [nearest_centre_accuracy(Synthetic(noise=noise).load(NOWHERE)) for noise in (0.0, 1.0, 100.0)]
    assert accuracies[0] == 1.0
    assert 0.85 < accuracies[1] < 0.999
    assert accuracies[2] < 0.2


def test_synthetic_clusters_are_as_wide_as_the_noise() -> None:
    data = Synthetic(noise=0.5).load(NOWHERE)
    for label in range(10):
        own = data.x[data.y == label]
        assert float((own - own.mean(dim=0)).std()) == pytest.approx(0.5, rel=0.03)


def test_names_and_bounds() -> None:
    assert DATASETS["digits"] is Digits
    assert DATASETS["mnist"] is MNIST
    assert DATASETS["fashion-mnist"] is FashionMNIST
    assert DATASETS["cifar10"] is CIFAR10
    assert DATASETS["shakespeare"] is Shakespeare
    assert DATASETS["synthetic"] is Synthetic
    with pytest.raises(ConfigError, match="noise: -1"):
        Synthetic(noise=-1)
    with pytest.raises(ConfigError, match="examples: 0"):
        Synthetic(examples=0)
