"""CIFAR-100 with its two kinds of labels, in small files of the official layouts."""

from __future__ import annotations

import io
import pathlib
import pickle
import tarfile
from typing import Literal

import numpy as np
import pytest
import torch
from tests.support.data_files import Serve, listing, md5

import offbeat as ob
from offbeat.data import CIFAR100
from offbeat.errors import ConfigError, DataError
from offbeat.models import LR
from offbeat.runs.config import parse

ROWS = {"train": 12, "test": 5}  # the real files have 50,000 and 10,000
TAR = "cifar-100-binary.tar.gz"
RNG = np.random.default_rng(0)
PIXELS = {name: RNG.integers(256, size=(rows, 3, 32, 32), dtype=np.uint8) for name, rows in ROWS.items()}
FINE = {name: RNG.integers(100, size=rows, dtype=np.uint8) for name, rows in ROWS.items()}
COARSE = {name: RNG.integers(20, size=rows, dtype=np.uint8) for name, rows in ROWS.items()}
EITHER = pytest.mark.parametrize("labels", ["fine", "coarse"])
Kind = Literal["fine", "coarse"]


def binary(name: str) -> bytes:
    """The official layout: a byte of the coarse label, one of the fine label, and the red, green and blue bytes."""
    return b"".join(
        bytes([coarse, fine]) + image.tobytes()
        for coarse, fine, image in zip(COARSE[name], FINE[name], PIXELS[name], strict=True)
    )


def python(name: str) -> bytes:
    return pickle.dumps(
        {
            b"filenames": [b"cat.png"] * ROWS[name],
            b"batch_label": b"training batch 1 of 1",
            b"fine_labels": FINE[name].tolist(),
            b"coarse_labels": COARSE[name].tolist(),
            b"data": PIXELS[name].reshape(-1, 3072),
        },
        protocol=4,
    )


BINARY = {f"{name}.bin": binary(name) for name in ROWS}
PYTHON = {name: python(name) for name in ROWS}


def write(folder: pathlib.Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in files.items():
        (folder / name).write_bytes(body)


def packed(files: dict[str, bytes]) -> bytes:
    """Return the official archive: everything in a subfolder, with files that are not needed."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, body in {"fine_label_names.txt": b"apple\n", **files}.items():
            info = tarfile.TarInfo(f"cifar-100-binary/{name}")
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return out.getvalue()


def assert_is_the_generated_one(folder: pathlib.Path, labels: Kind) -> None:
    data, expected = CIFAR100(labels=labels).load(folder), FINE if labels == "fine" else COARSE
    np.testing.assert_array_equal(data.x.numpy(), PIXELS["train"])
    np.testing.assert_array_equal(data.y.numpy(), expected["train"])
    np.testing.assert_array_equal(data.test_x.numpy(), PIXELS["test"])
    np.testing.assert_array_equal(data.test_y.numpy(), expected["test"])
    assert (data.shape, data.x.dtype) == ((3, 32, 32), torch.uint8)
    assert data.classes == (100 if labels == "fine" else 20)


@EITHER
@pytest.mark.parametrize("files", [BINARY, PYTHON], ids=["binary", "python"])
@pytest.mark.parametrize("inside", ["", "cifar-100-binary", "cifar-100-python"])
def test_both_versions_in_the_folder_or_in_its_official_subfolders(
    tmp_path: pathlib.Path, files: dict[str, bytes], inside: str, labels: Kind
) -> None:
    write(tmp_path / "cifar100" / inside, files)
    assert_is_the_generated_one(tmp_path, labels)


def test_a_byte_of_the_binary_version_is_what_its_page_says(tmp_path: pathlib.Path) -> None:
    marked = bytearray(2 * 3074)
    marked[3074], marked[3075] = 19, 99  # the second image's coarse and fine label
    marked[3074 + 2 + 1024 + 5 * 32 + 9] = 255  # its green, row 5, column 9
    write(tmp_path / "cifar100", {**BINARY, "test.bin": bytes(marked)})
    fine, coarse = CIFAR100().load(tmp_path), CIFAR100(labels="coarse").load(tmp_path)
    assert fine.test_y.tolist() == [0, 99]
    assert coarse.test_y.tolist() == [0, 19]
    assert fine.test_x.nonzero().tolist() == [[1, 1, 5, 9]]


def test_standardized_by_the_usual_means_and_deviations(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "cifar100", BINARY)
    white = CIFAR100().load(tmp_path).prepare(torch.full((1, 3, 32, 32), 255, dtype=torch.uint8))[0, :, 0, 0]
    expected = [(1 - 0.5071) / 0.2675, (1 - 0.4867) / 0.2565, (1 - 0.4408) / 0.2761]
    torch.testing.assert_close(white, torch.tensor(expected))


def test_from_the_archive_over_http_and_then_from_disk(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, serve: Serve, nobody: str
) -> None:
    archive = packed(BINARY)
    monkeypatch.setattr(CIFAR100, "checksums", {TAR: md5(archive)})
    monkeypatch.setattr(CIFAR100, "address", serve({TAR: archive}))
    assert_is_the_generated_one(tmp_path, "fine")
    assert listing(tmp_path / "cifar100") == [TAR]
    monkeypatch.setattr(CIFAR100, "address", nobody)
    assert_is_the_generated_one(tmp_path, "coarse")


def test_a_wrong_checksum_leaves_no_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    monkeypatch.setattr(CIFAR100, "address", serve({TAR: packed(BINARY)}))
    with pytest.raises(DataError, match="expected 03b5dce01913d631647c71ecec9e9cb8"):
        CIFAR100().load(tmp_path)
    assert listing(tmp_path / "cifar100") == []


def test_without_a_network_the_file_and_its_folder_are_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, nobody: str
) -> None:
    monkeypatch.setattr(CIFAR100, "address", nobody)
    write(tmp_path / "cifar100", {"train.bin": BINARY["train.bin"]})
    with pytest.raises(DataError) as caught:
        CIFAR100().load(tmp_path)
    assert f"Put these files into {tmp_path / 'cifar100'}: {TAR}" in str(caught.value)


@pytest.mark.parametrize("body", [b"", BINARY["train.bin"][:-1], BINARY["train.bin"][: 3 * 3073]])
def test_a_damaged_file_is_named(tmp_path: pathlib.Path, body: bytes) -> None:
    write(tmp_path / "cifar100", {**BINARY, "train.bin": body})
    with pytest.raises(DataError, match=f"train.bin: {len(body)} bytes, expected a multiple of 3074"):
        CIFAR100().load(tmp_path)


def test_batches_of_cifar_10_under_the_names_of_cifar_100_are_refused(tmp_path: pathlib.Path) -> None:
    other = pickle.dumps({b"data": PIXELS["train"].reshape(-1, 3072), b"labels": [0] * 12}, protocol=4)
    write(tmp_path / "cifar100", {**PYTHON, "train": other})
    with pytest.raises(DataError, match=r"train is not a batch of the Python version .* b'fine_labels'"):
        CIFAR100().load(tmp_path)


@pytest.mark.parametrize(("labels", "found", "classes"), [("fine", 100, 100), ("coarse", 20, 20)])
def test_a_label_beyond_the_classes_is_refused(tmp_path: pathlib.Path, labels: Kind, found: int, classes: int) -> None:
    write(tmp_path / "cifar100", {**BINARY, "test.bin": bytes([20, 100]) + bytes(3072)})
    with pytest.raises(DataError, match=f"test labels: {found} to {found}, but there are {classes} classes"):
        CIFAR100(labels=labels).load(tmp_path)


@EITHER
@pytest.mark.parametrize("model", ["cnn", "resnet18", "convmixer"])
def test_models_have_an_output_per_class(tmp_path: pathlib.Path, labels: Kind, model: str) -> None:
    write(tmp_path / "cifar100", BINARY)
    experiment = parse({"data": {"name": "cifar100", "labels": labels, "clients": 2}, "model": {"name": model}})
    data = experiment.data.load(tmp_path, 0).dataset
    module = experiment.model.build(data.shape, data.classes or 0)
    assert module.eval()(data.prepare(data.x[:2])).shape == (2, 100 if labels == "fine" else 20)


def test_a_run_on_the_data_set(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "cifar100", BINARY)
    result = ob.run(
        data=CIFAR100(), clients=3, data_dir=tmp_path, model=LR(), client=ob.SGD(lr=0.01, steps=1, batch_size=4),
        algorithm=ob.FedAvg(), scheduler=ob.Rounds(concurrency=3), rounds=2,
    )  # fmt: skip
    assert np.isfinite(result.evaluations[-1]["loss"])


def test_other_labels_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.labels: 'both' is not one of 'fine', 'coarse'"):
        parse({"data": {"name": "cifar100", "labels": "both"}})
