"""CIFAR-10 in all layouts in which it may be stored, with synthetic batches of a few images."""

from __future__ import annotations

import io
import pathlib
import pickle
import struct
import tarfile

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.data_files import Serve, listing, md5

from offbeat.data import CIFAR10, Dataset
from offbeat.errors import DataError

ROWS = 3  # real batches have 10,000
NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
TAR = "cifar-10-binary.tar.gz"
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(256, size=(6 * ROWS, 3, 32, 32), dtype=np.uint8)
LABELS = np.arange(6 * ROWS, dtype=np.uint8) % 10

Array = NDArray[np.uint8]


def binary(x: Array, y: Array) -> bytes:
    """The official layout: a label byte, 1024 red bytes, 1024 green ones, 1024 blue ones, each row by row."""
    return b"".join(bytes([label]) + image.tobytes() for image, label in zip(x, y, strict=True))


def python2(x: Array, y: Array) -> bytes:
    """A batch as Python 2 pickled it, opcode by opcode: byte strings, and NumPy under its old module names."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    data = x.tobytes()
    return b"".join(
        [
            b"\x80\x02}(",
            text(b"batch_label") + text(b"training batch 1 of 5"),
            text(b"labels") + b"](" + b"".join(b"K" + bytes([label]) for label in y) + b"e",
            text(b"data"),
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R",
            b"(K\x01" + number(len(x)) + number(3072) + b"\x86",
            b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R",
            b"(K\x03" + text(b"|") + b"NNN" + number(-1) + number(-1) + b"K\x00tb",
            b"\x89T" + struct.pack("<i", len(data)) + data + b"tb",
            text(b"filenames") + b"](" + b"".join(text(b"cat.png") for _ in x) + b"e",
            b"u.",
        ]
    )


def python3(x: Array, y: Array) -> bytes:
    """Return a batch pickled by a current Python and NumPy."""
    return pickle.dumps({b"data": x.reshape(len(x), 3072), b"labels": y.tolist()}, protocol=4)


def batches() -> list[tuple[str, Array, Array]]:
    return [(n, PIXELS[i * ROWS : (i + 1) * ROWS], LABELS[i * ROWS : (i + 1) * ROWS]) for i, n in enumerate(NAMES)]


BINARY = {f"{name}.bin": binary(x, y) for name, x, y in batches()}
PYTHON2 = {name: python2(x, y) for name, x, y in batches()}
PYTHON3 = {name: python3(x, y) for name, x, y in batches()}


def write(folder: pathlib.Path, files: dict[str, bytes]) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in files.items():
        (folder / name).write_bytes(body)
    return folder


def packed(files: dict[str, bytes]) -> bytes:
    """Return the official archive: everything in a subfolder, with files that are not needed."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        folder = tarfile.TarInfo("cifar-10-batches-bin")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, body in {"readme.html": b"<html>", **files}.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return out.getvalue()


def assert_is_the_made_up_one(data: Dataset) -> None:
    split = 5 * ROWS
    np.testing.assert_array_equal(data.x.numpy(), PIXELS[:split])
    np.testing.assert_array_equal(data.y.numpy(), LABELS[:split])
    np.testing.assert_array_equal(data.test_x.numpy(), PIXELS[split:])
    np.testing.assert_array_equal(data.test_y.numpy(), LABELS[split:])
    assert (data.shape, data.classes, data.x.dtype) == ((3, 32, 32), 10, torch.uint8)


@pytest.mark.parametrize("files", [BINARY, PYTHON2, PYTHON3], ids=["binary", "python 2", "python 3"])
@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin", "cifar-10-batches-py"])
def test_both_versions_in_the_folder_or_in_its_official_subfolders(
    tmp_path: pathlib.Path, files: dict[str, bytes], inside: str
) -> None:
    write(tmp_path / "cifar10" / inside, files)
    assert_is_the_made_up_one(CIFAR10().load(tmp_path))


def test_a_byte_of_the_binary_version_is_the_pixel_that_its_page_says(tmp_path: pathlib.Path) -> None:
    marked = bytearray(ROWS * 3073)
    marked[2 * 3073] = 7  # the third image's label
    marked[2 * 3073 + 1 + 1024 + 5 * 32 + 9] = 255  # its green, row 5, column 9
    write(tmp_path / "cifar10", {**BINARY, "test_batch.bin": bytes(marked)})
    data = CIFAR10().load(tmp_path)
    assert data.test_y.tolist() == [0, 0, 7]
    assert data.test_x.nonzero().tolist() == [[2, 1, 5, 9]]


def test_standardized_by_the_usual_means_and_deviations(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "cifar10", BINARY)
    data = CIFAR10().load(tmp_path)
    white = data.prepare(torch.full((1, 3, 32, 32), 255, dtype=torch.uint8))[0, :, 0, 0]
    expected = [(1 - 0.4914) / 0.2470, (1 - 0.4822) / 0.2435, (1 - 0.4465) / 0.2616]
    torch.testing.assert_close(white, torch.tensor(expected))


def test_between_zero_and_one_if_not_standardized(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "cifar10", BINARY)
    data = CIFAR10(standardize=False).load(tmp_path)
    assert_is_the_made_up_one(data)
    gray = data.prepare(torch.full((1, 3, 32, 32), 51, dtype=torch.uint8))
    torch.testing.assert_close(gray, torch.full((1, 3, 32, 32), 0.2))


def test_from_the_archive_over_http_and_then_from_disk(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, serve: Serve, nobody: str
) -> None:
    archive = packed(BINARY)
    monkeypatch.setattr(CIFAR10, "checksums", {TAR: md5(archive)})
    monkeypatch.setattr(CIFAR10, "address", serve({TAR: archive}))
    assert_is_the_made_up_one(CIFAR10().load(tmp_path))
    assert listing(tmp_path / "cifar10") == [TAR]
    monkeypatch.setattr(CIFAR10, "address", nobody)
    assert_is_the_made_up_one(CIFAR10().load(tmp_path))


def test_a_wrong_checksum_leaves_no_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    monkeypatch.setattr(CIFAR10, "address", serve({TAR: packed(BINARY)}))
    with pytest.raises(DataError, match="expected c32a1d4ab5d03f1284b67883e8d87530"):
        CIFAR10().load(tmp_path)
    assert listing(tmp_path / "cifar10") == []


def test_without_a_network_the_file_and_its_folder_are_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, nobody: str
) -> None:
    monkeypatch.setattr(CIFAR10, "address", nobody)
    write(tmp_path / "cifar10", {name: BINARY[name] for name in list(BINARY)[:5]})  # one batch is missing
    with pytest.raises(DataError) as caught:
        CIFAR10().load(tmp_path)
    assert f"Put these files into {tmp_path / 'cifar10'}: {TAR}" in str(caught.value)


def test_an_archive_without_one_of_the_batches(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "cifar10", {TAR: packed({name: BINARY[name] for name in list(BINARY)[:5]})})
    with pytest.raises(DataError, match=rf"{TAR} is not a complete archive .*test_batch\.bin"):
        CIFAR10().load(tmp_path)


@pytest.mark.parametrize("archive", [b"garbage", packed(BINARY)[:20_000]], ids=["garbage", "truncated"])
def test_a_damaged_archive_is_refused_and_named(tmp_path: pathlib.Path, archive: bytes) -> None:
    write(tmp_path / "cifar10", {TAR: archive})
    with pytest.raises(DataError, match=TAR):
        CIFAR10().load(tmp_path)


@pytest.mark.parametrize(
    "body",
    [b"", BINARY["data_batch_3.bin"][:-1], BINARY["data_batch_3.bin"] + b"\0"],
    ids=["empty", "a byte less", "a byte more"],
)
def test_a_damaged_batch_of_the_binary_version_is_named(tmp_path: pathlib.Path, body: bytes) -> None:
    write(tmp_path / "cifar10", {**BINARY, "data_batch_3.bin": body})
    with pytest.raises(DataError, match=f"data_batch_3.bin: {len(body)} bytes, expected a multiple of 3073"):
        CIFAR10().load(tmp_path)


DAMAGED = {
    "empty": b"",
    "truncated": PYTHON2["data_batch_3"][:-1000],
    "no pickle": b"<html>sorry</html>",
    "no batch": pickle.dumps({b"data": 1}, protocol=4),
    "a list": pickle.dumps([1, 2], protocol=4),
    "half an image": pickle.dumps({b"data": bytes(3000), b"labels": [1]}, protocol=4),
}


@pytest.mark.parametrize("body", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_batch_of_the_python_version_is_named(tmp_path: pathlib.Path, body: bytes) -> None:
    place = write(tmp_path / "cifar10", {**PYTHON2, "data_batch_3": body})
    with pytest.raises(DataError) as caught:
        CIFAR10().load(tmp_path)
    assert str(place / "data_batch_3") in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [300]}, protocol=4), b"\x80\x02K\x01K\x02a."],
    ids=["a label of 300", "an append to a number"],
)
def test_an_odd_batch_of_the_python_version_is_named(tmp_path: pathlib.Path, body: bytes) -> None:
    write(tmp_path / "cifar10", {**PYTHON2, "data_batch_3": body})
    with pytest.raises(DataError, match="data_batch_3"):
        CIFAR10().load(tmp_path)


def test_a_label_beyond_the_ten_is_refused(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "cifar10", {**BINARY, "test_batch.bin": bytes([10]) * 3073})
    with pytest.raises(DataError, match="test labels: 10 to 10, but there are 10 classes"):
        CIFAR10().load(tmp_path)


def call(module: str, name: str, argument: str) -> bytes:
    """Return a pickle that calls module.name(argument, {}) or module.name(argument)."""
    second = b"}" if name == "runstring" else b""
    text = b"X" + struct.pack("<I", len(argument)) + argument.encode()
    return f"\x80\x02c{module}\n{name}\n".encode("latin-1") + b"(" + text + second + b"tR."


@pytest.mark.parametrize(
    ("module", "name"),
    [("os", "mkdir"), ("builtins", "exec"), ("__builtin__", "eval"), ("numpy.testing._private.utils", "runstring")],
)
def test_a_malicious_pickle_is_refused_and_does_not_run(tmp_path: pathlib.Path, module: str, name: str) -> None:
    loot = tmp_path / "loot"
    body = call(module, name, str(loot) if name == "mkdir" else f"__import__('os').mkdir({str(loot)!r})")
    pickle.loads(body)  # the weapon is loaded: an ordinary reader would have fired it
    assert loot.is_dir()
    loot.rmdir()
    write(tmp_path / "cifar10", {**PYTHON2, "data_batch_1": body})
    with pytest.raises(DataError, match=rf"data_batch_1.*{name} is not part of CIFAR-10"):
        CIFAR10().load(tmp_path)
    assert not loot.exists()
