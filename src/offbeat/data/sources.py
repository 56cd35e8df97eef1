"""Data sets by name."""

from __future__ import annotations

import importlib.util
import io
import pathlib
import pickle
import tarfile
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from offbeat.data import text
from offbeat.data.dataset import Dataset, from_arrays
from offbeat.data.files import fetch, find, read_idx, read_text
from offbeat.errors import DataError
from offbeat.options import Count, NonNegative, Options
from offbeat.seeds import stream


class Source(Options, ABC):
    @abstractmethod
    def load(self, folder: pathlib.Path) -> Dataset:
        """Read the data set; `folder` is where all data sets lie."""


@dataclass(kw_only=True, frozen=True)
class Digits(Source):
    """scikit-learn's 1,797 handwritten digits, 8×8 grey: no file and no network needed.  Every fifth is for test."""

    def load(self, folder: pathlib.Path) -> Dataset:
        images, y = self._images()
        x = (images / 16.0).astype(np.float32)[:, None]
        order = stream("digits").permutation(len(x))
        test, train = order[::5], np.setdiff1d(order, order[::5])
        return from_arrays(x[train], y[train], x[test], y[test], classes=10)

    def _images(self) -> tuple[Any, Any]:
        """From the file itself where it can be found: to import scikit-learn takes longer than to train on it."""
        package = importlib.util.find_spec("sklearn")
        assert package is not None
        assert package.origin is not None
        file = pathlib.Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
        from sklearn.datasets import load_digits

        bunch: Any = load_digits()
        return bunch.images, bunch.target


@dataclass(kw_only=True, frozen=True)
class Synthetic(Source):
    """Gaussian clusters in `features` dimensions, one a class, `noise` wide: a problem of any size."""

    examples: Count = 10_000
    """For training."""
    test_examples: Count = 2_000
    """For test."""
    features: Count = 32
    """Dimensions."""
    classes: Count = 10
    """Clusters."""
    noise: NonNegative = 1.0
    """Standard deviation of a cluster; its centre is about 3 from the origin."""
    seed: int = 0
    """The data's own seed: runs with different seeds see the same data."""

    def load(self, folder: pathlib.Path) -> Dataset:
        rng = stream(self.seed, "synthetic")
        centres = rng.standard_normal((self.classes, self.features), dtype=np.float32)
        centres *= 3.0 / np.sqrt(self.features)

        def draw(n: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
            y = rng.permutation(np.arange(n) % self.classes)
            return centres[y] + self.noise * rng.standard_normal((n, self.features), dtype=np.float32), y

        return from_arrays(*draw(self.examples), *draw(self.test_examples), classes=self.classes)


class _Idx(Source):
    """MNIST and those that share its four files."""

    directory: ClassVar[str]
    address: ClassVar[str]
    checksums: ClassVar[dict[str, str]]

    def load(self, folder: pathlib.Path) -> Dataset:
        place = folder / self.directory
        names = list(self.checksums)
        paths = find(place, names) or find(place, [name.removesuffix(".gz") for name in names])
        if paths is None:
            fetch(place, self.address, self.checksums)
            paths = [place / name for name in names]
        x, y, test_x, test_y = (read_idx(path) for path in paths)
        return from_arrays(x[:, None].copy(), y.copy(), test_x[:, None].copy(), test_y.copy(), classes=10)


@dataclass(kw_only=True, frozen=True)
class MNIST(_Idx):
    """70,000 handwritten digits, 28×28 grey; inputs in [0, 1], not standardised."""

    directory: ClassVar[str] = "mnist"
    address: ClassVar[str] = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    checksums: ClassVar[dict[str, str]] = {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    }


@dataclass(kw_only=True, frozen=True)
class FashionMNIST(_Idx):
    """70,000 pieces of clothing, 28×28 grey; inputs in [0, 1], not standardised."""

    directory: ClassVar[str] = "fashion-mnist"
    address: ClassVar[str] = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
    checksums: ClassVar[dict[str, str]] = {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    }


@dataclass(kw_only=True, frozen=True)
class CIFAR10(Source):
    """60,000 colour images, 3×32×32, standardised by channel.  Reads the binary and the python version."""

    address: ClassVar[str] = "https://www.cs.toronto.edu/~kriz/"
    checksums: ClassVar[dict[str, str]] = {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"}
    inside: ClassVar[tuple[str, ...]] = ("cifar-10-batches-bin", "cifar-10-batches-py")

    def load(self, folder: pathlib.Path) -> Dataset:
        place = folder / "cifar10"
        names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
        binary = [f"{name}.bin" for name in names]
        if paths := find(place, binary, self.inside):
            batches = [_cifar_binary(path.read_bytes(), path.name) for path in paths]
        elif paths := find(place, names, self.inside):
            batches = [_cifar_pickle(path) for path in paths]
        else:
            fetch(place, self.address, self.checksums)
            raw = _members(place / next(iter(self.checksums)), binary)
            batches = [_cifar_binary(body, name) for body, name in zip(raw, binary, strict=True)]
        x, y = (np.concatenate(parts) for parts in zip(*batches[:5], strict=True))
        test_x, test_y = batches[5]
        plain = from_arrays(x, y, test_x, test_y, classes=10)
        return Dataset(
            plain.x, plain.y, plain.test_x, plain.test_y, 10,
            mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616),
        )  # fmt: skip


def _members(path: pathlib.Path, names: list[str]) -> list[bytes]:
    """The contents of some files in a tar archive, whatever their folder in it."""
    try:
        with tarfile.open(path) as archive:
            found = {pathlib.PurePosixPath(m.name).name: archive.extractfile(m) for m in archive if m.isfile()}
            return [found[name].read() for name in names]  # type: ignore[union-attr]  # they are files
    except (tarfile.TarError, OSError, EOFError, zlib.error, KeyError) as error:
        raise DataError(f"{path} is not a whole archive of {', '.join(names)}: {error!r}") from error


def _cifar_binary(raw: bytes, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A label byte and 3·32·32 pixel bytes an image."""
    if not raw or len(raw) % 3073:
        raise DataError(f"{name}: {len(raw)} bytes, expected a multiple of 3073")
    rows = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32).copy(), rows[:, 0].copy()


class _NumpyOnly(pickle.Unpickler):
    """Reads the python version's pickles and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        home = module.replace("numpy.core", "numpy._core")
        if (home, name) in {
            ("numpy._core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype"),
        }:  # fmt: skip
            return super().find_class(home, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong into CIFAR-10")


def _cifar_pickle(path: pathlib.Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    try:
        batch = _NumpyOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        x = np.asarray(batch[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        return x, np.asarray(batch[b"labels"], dtype=np.uint8)
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(f"{path} is not a batch of CIFAR-10's python version: {error}") from error


@dataclass(kw_only=True, frozen=True)
class Shakespeare(Source):
    """Scenes of Shakespeare, 1.1 MB: from 80 characters to the next one.  A role is an owner (partition `natural`).

    As in LEAF (Caldas et al., 2018): its 80 characters (the one "$" of the text is none of them and is left out), line
    ends as spaces, a window from every character on, the first 80 % of a role's windows for training and the rest for
    test, except those that overlap what training has predicted; a role without a test window is left out.  Unlike LEAF
    it is not all of Shakespeare, and the text does not name its plays: roles of one name are one role.
    """

    min_examples: Count = 1
    """Windows that a role must have at least, for training and test together."""
    stride: Count = 1
    """A window begins every so many characters: more make a smaller data set."""

    address: ClassVar[str] = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/"
    checksums: ClassVar[dict[str, str]] = {"input.txt": "6fb458f1232090904fb40fe944165e91"}
    length: ClassVar[int] = 80

    def load(self, folder: pathlib.Path) -> Dataset:
        place = folder / "shakespeare"
        paths = find(place, ["input.txt"]) or find(place, ["tinyshakespeare_input.txt"])
        if paths is None:
            fetch(place, self.address, self.checksums)
            paths = [place / "input.txt"]
        roles = [self._role(said) for said in text.speeches(read_text(paths[0])).values()]
        kept = [role for role in roles if role is not None]
        if not kept:
            raise DataError(f"{paths[0]}: none of {len(roles)} roles says enough for {self.min_examples} examples")
        owners = np.repeat(np.arange(len(kept)), [len(y) for _, y, _, _ in kept])
        x, y, test_x, test_y = (np.concatenate(parts) for parts in zip(*kept, strict=True))
        size = len(text.CHARACTERS)
        return from_arrays(x, y, test_x, test_y, classes=size, vocabulary=size, owners=owners)

    def _role(self, said: str) -> tuple[text.Tokens, text.Tokens, text.Tokens, text.Tokens] | None:
        """Training windows and what follows them, test windows and what follows them; None for too small a role."""
        x, y = text.windows(text.encode(said), self.length, self.stride)
        end, begin = text.cut(len(y), self.length, self.stride, train=0.8)
        if len(y) < self.min_examples or begin >= len(y):
            return None
        return x[:end], y[:end], x[begin:], y[begin:]


DATASETS: dict[str, type[Source]] = {
    "digits": Digits,
    "mnist": MNIST,
    "fashion-mnist": FashionMNIST,
    "cifar10": CIFAR10,
    "shakespeare": Shakespeare,
    "synthetic": Synthetic,
}
