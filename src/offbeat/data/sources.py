"""The built-in datasets."""

from __future__ import annotations

import importlib.util
import io
import pathlib
import pickle
import tarfile
import zlib
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offbeat.data import text
from offbeat.data.create import from_arrays
from offbeat.data.dataset import Dataset
from offbeat.data.files import fetch, find, read_idx, read_text
from offbeat.data.leaf import FEMNIST as FEMNIST
from offbeat.data.source import Source as Source
from offbeat.data.tabular import Tabular as Tabular
from offbeat.errors import DataError
from offbeat.options import NonNegative, PositiveInt
from offbeat.random import stream


@dataclass(kw_only=True, frozen=True)
class Digits(Source):
    """scikit-learn's 1,797 handwritten digits, 8×8 grayscale.

    One in five is a test example. Needs neither files nor a network connection.
    """

    def load(self, folder: pathlib.Path) -> Dataset:
        """Read the dataset."""
        table = _digits_table()
        y = table[:, -1].astype(np.int64)
        x = (table[:, :-1].reshape(-1, 1, 8, 8) / 16.0).astype(np.float32)
        order = stream("digits").permutation(len(x))
        test, train = order[::5], np.setdiff1d(order, order[::5])
        return from_arrays(x[train], y[train], x[test], y[test], classes=10)


def _digits_table() -> NDArray[np.float64]:
    """Return 64 pixels and a label per row, from scikit-learn's file; importing scikit-learn takes over a second."""
    spec = importlib.util.find_spec("sklearn")
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        file = pathlib.Path(place, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits  # a version that stores it elsewhere

    bunch: Any = load_digits()
    return np.column_stack([bunch.data, bunch.target])


@dataclass(kw_only=True, frozen=True)
class Synthetic(Source):
    """Gaussian clusters, one per class: a problem of any size."""

    examples: PositiveInt = 10_000
    """Training examples."""
    test_examples: PositiveInt = 2_000
    """Test examples."""
    features: PositiveInt = 32
    """Input dimensions."""
    classes: PositiveInt = 10
    """Number of classes, which is the number of clusters."""
    noise: NonNegative = 1.0
    """Standard deviation of a cluster. Its center is at a distance of about 3 from the origin."""
    seed: int = 0
    """Seed of the data, separate from the seed of the run: runs with different seeds use the same data."""

    def load(self, folder: pathlib.Path) -> Dataset:
        """Read the dataset."""
        rng = stream(self.seed, "synthetic")
        centers = rng.standard_normal((self.classes, self.features), dtype=np.float32)
        centers *= 3.0 / np.sqrt(self.features)

        def draw(n: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
            y = rng.permutation(np.arange(n) % self.classes)
            return centers[y] + self.noise * rng.standard_normal((n, self.features), dtype=np.float32), y

        return from_arrays(*draw(self.examples), *draw(self.test_examples), classes=self.classes)


@dataclass(kw_only=True, frozen=True)
class _Idx(Source):
    """Base class of the datasets in the four-file format of MNIST."""

    standardize: bool = False
    """Whether inputs are standardized; if not, they are in [0, 1]."""

    directory: ClassVar[str]
    address: ClassVar[str]
    checksums: ClassVar[dict[str, str]]
    mean: ClassVar[float]
    std: ClassVar[float]

    def load(self, folder: pathlib.Path) -> Dataset:
        """Read the dataset."""
        place = folder / self.directory
        names = list(self.checksums)
        paths = find(place, names) or find(place, [name.removesuffix(".gz") for name in names])
        if paths is None:
            fetch(place, self.address, self.checksums)
            paths = [place / name for name in names]
        x, y, test_x, test_y = (read_idx(path) for path in paths)
        data = from_arrays(x[:, None].copy(), y.copy(), test_x[:, None].copy(), test_y.copy(), classes=10)
        return replace(data, mean=(self.mean,), std=(self.std,)) if self.standardize else data


@dataclass(kw_only=True, frozen=True)
class MNIST(_Idx):
    """MNIST: 70,000 handwritten digits, 28×28 grayscale; inputs in [0, 1], or standardized."""

    directory: ClassVar[str] = "mnist"
    address: ClassVar[str] = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    mean: ClassVar[float] = 0.1307
    std: ClassVar[float] = 0.3081
    checksums: ClassVar[dict[str, str]] = {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    }


@dataclass(kw_only=True, frozen=True)
class FashionMNIST(_Idx):
    """Fashion-MNIST: 70,000 images of clothing, 28×28 grayscale; inputs in [0, 1], or standardized."""

    directory: ClassVar[str] = "fashion-mnist"
    address: ClassVar[str] = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
    mean: ClassVar[float] = 0.2860
    std: ClassVar[float] = 0.3530
    checksums: ClassVar[dict[str, str]] = {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    }


class _Labels(NamedTuple):
    """Where the batches of a CIFAR dataset have the labels."""

    classes: int
    key: bytes  # in the Python version
    column: int = 0  # in the binary version, among the label bytes before each image
    columns: int = 1


@dataclass(kw_only=True, frozen=True)
class _Cifar(Source):
    """Base class of the datasets in the formats of CIFAR-10. Reads both the binary and the Python version."""

    standardize: bool = True
    """Whether inputs are standardized per channel; if not, they are in [0, 1]."""

    directory: ClassVar[str]
    address: ClassVar[str] = "https://www.cs.toronto.edu/~kriz/"
    checksums: ClassVar[dict[str, str]]
    inside: ClassVar[tuple[str, ...]]
    """Subfolders in which the batches may be."""
    names: ClassVar[tuple[str, ...]]
    """Batches, the test batch last."""
    mean: ClassVar[tuple[float, float, float]]
    std: ClassVar[tuple[float, float, float]]

    @property
    @abstractmethod
    def place_of_labels(self) -> _Labels:
        """Where the batches have the labels."""

    def load(self, folder: pathlib.Path) -> Dataset:
        """Read the dataset."""
        place, labels = folder / self.directory, self.place_of_labels
        binary = [f"{name}.bin" for name in self.names]
        if paths := find(place, binary, self.inside):
            batches = [_cifar_binary(path.read_bytes(), path.name, labels) for path in paths]
        elif paths := find(place, self.names, self.inside):
            batches = [_cifar_pickle(path, labels) for path in paths]
        else:
            fetch(place, self.address, self.checksums)
            raw = _members(place / next(iter(self.checksums)), binary)
            batches = [_cifar_binary(body, name, labels) for body, name in zip(raw, binary, strict=True)]
        x, y = (np.concatenate(parts) for parts in zip(*batches[:-1], strict=True))
        test_x, test_y = batches[-1]
        raw_data = from_arrays(x, y, test_x, test_y, classes=labels.classes)
        return replace(raw_data, mean=self.mean, std=self.std) if self.standardize else raw_data


@dataclass(kw_only=True, frozen=True)
class CIFAR10(_Cifar):
    """CIFAR-10: 60,000 color images, 3×32×32, standardized per channel.

    Reads both the binary and the Python version of the files.
    """

    directory: ClassVar[str] = "cifar10"
    checksums: ClassVar[dict[str, str]] = {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"}
    inside: ClassVar[tuple[str, ...]] = ("cifar-10-batches-bin", "cifar-10-batches-py")
    names: ClassVar[tuple[str, ...]] = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
    mean: ClassVar[tuple[float, float, float]] = (0.4914, 0.4822, 0.4465)
    std: ClassVar[tuple[float, float, float]] = (0.2470, 0.2435, 0.2616)

    @property
    def place_of_labels(self) -> _Labels:
        """Where the batches have the labels."""
        return _Labels(10, b"labels")


@dataclass(kw_only=True, frozen=True)
class CIFAR100(_Cifar):
    """CIFAR-100: 60,000 color images, 3×32×32, standardized per channel, with 100 classes in 20 groups.

    Reads both the binary and the Python version of the files.
    """

    labels: Literal["fine", "coarse"] = "fine"
    """The 100 classes, or the 20 groups of five classes each."""

    directory: ClassVar[str] = "cifar100"
    checksums: ClassVar[dict[str, str]] = {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"}
    inside: ClassVar[tuple[str, ...]] = ("cifar-100-binary", "cifar-100-python")
    names: ClassVar[tuple[str, ...]] = ("train", "test")
    mean: ClassVar[tuple[float, float, float]] = (0.5071, 0.4867, 0.4408)
    std: ClassVar[tuple[float, float, float]] = (0.2675, 0.2565, 0.2761)

    @property
    def place_of_labels(self) -> _Labels:
        """Where the batches have the labels."""
        fine = self.labels == "fine"
        return _Labels(100, b"fine_labels", 1, 2) if fine else _Labels(20, b"coarse_labels", 0, 2)


def _members(path: pathlib.Path, names: list[str]) -> list[bytes]:
    """Return the contents of the named files in a tar archive, whatever folder they are in."""
    try:
        with tarfile.open(path) as archive:
            files = {pathlib.PurePosixPath(m.name).name: archive.extractfile(m) for m in archive if m.isfile()}
            return [files[name].read() for name in names]  # type: ignore[union-attr]  # never None for a regular file
    except (tarfile.TarError, OSError, EOFError, zlib.error, KeyError) as error:
        raise DataError(f"{path} is not a complete archive of {', '.join(names)}: {error!r}") from error


def _cifar_binary(raw: bytes, name: str, labels: _Labels) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Parse images that are stored as their label bytes and 3·32·32 pixel bytes each."""
    size = labels.columns + 3072
    if not raw or len(raw) % size:
        raise DataError(f"{name}: {len(raw)} bytes, expected a multiple of {size}")
    rows = np.frombuffer(raw, dtype=np.uint8).reshape(-1, size)
    return rows[:, labels.columns :].reshape(-1, 3, 32, 32).copy(), rows[:, labels.column].copy()


class _NumpyOnly(pickle.Unpickler):
    """An unpickler that accepts NumPy arrays only, so that a pickle cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed class, or raise `UnpicklingError`."""
        current = module.replace("numpy.core", "numpy._core")
        if (current, name) in {
            ("numpy._core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype"),
        }:  # fmt: skip
            return super().find_class(current, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not part of CIFAR-10 or CIFAR-100")


def _cifar_pickle(path: pathlib.Path, labels: _Labels) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    try:
        batch = _NumpyOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        x = np.asarray(batch[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        return x, np.asarray(batch[labels.key], dtype=np.uint8)
    except Exception as error:  # a damaged pickle can raise almost anything
        raise DataError(f"{path} is not a batch of the Python version of CIFAR-10 or CIFAR-100: {error}") from error


@dataclass(kw_only=True, frozen=True)
class Shakespeare(Source):
    """Next-character prediction on 1.1 MB of Shakespeare. Each role is an owner (partition `natural`).

    The preprocessing follows LEAF (Caldas et al., 2018): a vocabulary of 80 characters (the only other one in the text,
    a single "$", is dropped), line ends as spaces, and a window of 80 characters starting at every character. The first
    80 % of a role's windows are for training and the rest for testing, except those that overlap the training labels. A
    role without test windows is dropped. Unlike LEAF, the text does not contain all plays and does not name them, so
    roles of the same name are merged.

    A language model that predicts at every position takes `targets="all"`, with the task `language-modeling`, and
    windows that do not overlap: a stride equal to the length.
    """

    min_examples: PositiveInt = 1
    """Minimum number of windows per role, for training and testing together."""
    stride: PositiveInt = 1
    """Characters between the starts of consecutive windows. A larger stride gives a smaller dataset."""
    length: PositiveInt = 80
    """Characters per window."""
    targets: Literal["last", "all"] = "last"
    """Labels of a window: the character that follows it, as in LEAF, or the next character at every position."""

    address: ClassVar[str] = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/"
    checksums: ClassVar[dict[str, str]] = {"input.txt": "6fb458f1232090904fb40fe944165e91"}

    def load(self, folder: pathlib.Path) -> Dataset:
        """Read the dataset."""
        place = folder / "shakespeare"
        paths = find(place, ["input.txt"]) or find(place, ["tinyshakespeare_input.txt"])
        if paths is None:
            fetch(place, self.address, self.checksums)
            paths = [place / "input.txt"]
        roles = [self._windows(lines) for lines in text.speeches(read_text(paths[0])).values()]
        usable = [role for role in roles if role is not None]
        if not usable:
            raise DataError(
                f"{paths[0]}: none of the {len(roles)} roles has {self.min_examples} examples; reduce min_examples"
            )
        owners, test_owners = (
            np.repeat(np.arange(len(usable)), [len(role[split]) for role in usable]) for split in (1, 3)
        )
        x, y, test_x, test_y = (np.concatenate(parts) for parts in zip(*usable, strict=True))
        size = len(text.CHARACTERS)
        classes = size if self.targets == "last" else None
        return from_arrays(
            x, y, test_x, test_y, classes=classes, vocabulary=size, owners=owners, test_owners=test_owners,
        )  # fmt: skip

    def _windows(self, lines: str) -> tuple[text.Tokens, text.Tokens, text.Tokens, text.Tokens] | None:
        """Return the training and test inputs and labels of a role, or None if it is too small."""
        x, y = text.windows(text.encode(lines), self.length, self.stride)
        y = y[:, -1] if self.targets == "last" else y
        end, begin = text.split_point(len(y), self.length, self.stride, train=0.8)
        if len(y) < self.min_examples or begin >= len(y):
            return None
        return x[:end], y[:end], x[begin:], y[begin:]


DATASETS: dict[str, type[Source]] = {
    "digits": Digits,
    "mnist": MNIST,
    "fashion-mnist": FashionMNIST,
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "femnist": FEMNIST,
    "shakespeare": Shakespeare,
    "tabular": Tabular,
    "synthetic": Synthetic,
}
