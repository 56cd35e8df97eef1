"""Where data files are stored, how they are downloaded, and the IDX format."""

from __future__ import annotations

import gzip
import pathlib
import struct

import numpy as np
import pytest
from tests.support.data_files import Answer, Serve, idx, listing, md5

from offbeat.data import data_dir
from offbeat.data.files import fetch, find, read_idx
from offbeat.data.preparing import Preparing, watched
from offbeat.errors import DataError

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("shape", [(24,), (2, 3, 4), (4, 6), (0, 5)])
def test_idx_plain_and_gzipped(tmp_path: pathlib.Path, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    (tmp_path / "a").write_bytes(idx(array))
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx(array)))
    for name in ("a", "a.gz"):
        read = read_idx(tmp_path / name)
        assert read.dtype == np.uint8
        np.testing.assert_array_equal(read, array)
        assert read.shape == shape


@pytest.mark.parametrize(
    "body",
    [
        idx(ARRAY) + b"\0",
        idx(ARRAY, kind=0x0D),  # floats
        idx(ARRAY, zero=1),
        idx(ARRAY[:1])[:4] + idx(ARRAY)[4:8] + idx(ARRAY[:1])[8:],  # a header of 2×3×4 over half the bytes
        struct.pack(">HBB3I", 0, 8, 3, 1 << 31, 1 << 31, 4),  # a product that overflows to zero
        b"<!DOCTYPE html><html>sorry</html>",
    ],
    ids=["one byte more", "floats", "magic", "half", "overflow", "html"],
)
def test_invalid_idx_file_is_rejected_by_name(tmp_path: pathlib.Path, body: bytes) -> None:
    for name, raw in (("a", body), ("a.gz", gzip.compress(body))):
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(DataError) as caught:
            read_idx(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path / name) + " is not a complete IDX file")


@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_truncated_idx_file_is_rejected_at_every_length(tmp_path: pathlib.Path, name: str) -> None:
    whole = gzip.compress(idx(ARRAY)) if name == "a.gz" else idx(ARRAY)
    for end in range(len(whole)):
        (tmp_path / name).write_bytes(whole[:end])
        with pytest.raises(DataError, match=name):
            read_idx(tmp_path / name)


def test_a_missing_file_and_a_wrong_gzip_are_data_errors(tmp_path: pathlib.Path) -> None:
    with pytest.raises(DataError, match="missing"):
        read_idx(tmp_path / "missing")
    (tmp_path / "a.gz").write_bytes(idx(ARRAY))
    with pytest.raises(DataError, match="gz"):
        read_idx(tmp_path / "a.gz")
    (tmp_path / "b.gz").write_bytes(gzip.compress(idx(ARRAY))[:-8] + bytes(8))  # a wrong checksum
    with pytest.raises(DataError, match="CRC"):
        read_idx(tmp_path / "b.gz")


def test_a_damaged_gzip_is_refused_wherever_the_damage_is(tmp_path: pathlib.Path) -> None:
    whole = gzip.compress(idx(ARRAY), mtime=0)
    for position in range(10, len(whole)):  # behind the header, whose time and system nobody checks
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        (tmp_path / "a.gz").write_bytes(damaged)
        with pytest.raises(DataError, match="gz"):
            read_idx(tmp_path / "a.gz")


def test_the_data_dir_is_the_option_then_the_environment_variable_then_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFBEAT_DATA", "/environment")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert data_dir("/given") == pathlib.Path("/given")
    assert data_dir() == pathlib.Path("/environment")
    monkeypatch.delenv("OFFBEAT_DATA")
    assert data_dir() == pathlib.Path("/cache/offbeat")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_dir() == pathlib.Path("/home/somebody/.cache/offbeat")


def test_find_requires_all_files_in_one_folder(tmp_path: pathlib.Path) -> None:
    for name in ("a", "sub/b", "sub/a", "other/a", "other/b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert find(tmp_path, ["a"], ["sub"]) == [tmp_path / "a"], "the folder itself comes first"
    assert find(tmp_path, ["b", "a"], ["sub", "other"]) == [tmp_path / "sub" / "b", tmp_path / "sub" / "a"]
    assert find(tmp_path, ["a", "b"]) is None
    assert find(tmp_path, ["sub"]) is None, "a folder is no file"
    assert find(tmp_path / "nowhere", ["a"]) is None


def test_fetch_creates_the_folder_and_leaves_only_complete_files(tmp_path: pathlib.Path, serve: Serve) -> None:
    files = {"a.bin": b"a" * 3_000_000, "b.bin": b""}  # larger than a chunk, and empty
    folder = tmp_path / "deep" / "er"
    fetch(folder, serve(files), {name: md5(body) for name, body in files.items()})
    assert listing(folder) == ["a.bin", "b.bin"]
    assert {name: (folder / name).read_bytes() for name in files} == files


def test_fetch_reports_progress(tmp_path: pathlib.Path, serve: Serve) -> None:
    files, told = {"a.bin": b"a" * 3_000_000, "b.bin": b"b"}, list[Preparing | None]()
    with watched(told.append):
        fetch(tmp_path, serve(files), {name: md5(body) for name, body in files.items()})
    first, last = told[0], told[-4:]
    assert first == Preparing("a.bin", 0, 3_000_000, in_bytes=True)
    assert Preparing("a.bin", 3_000_000, 3_000_000, in_bytes=True) in told
    assert last == [None, Preparing("b.bin", 0, 1, in_bytes=True), Preparing("b.bin", 1, 1, in_bytes=True), None]


def test_fetch_keeps_existing_files(tmp_path: pathlib.Path, serve: Serve) -> None:
    (tmp_path / "mine").write_bytes(b"my own version")
    fetch(tmp_path, serve({"other": b"o"}), {"mine": md5(b"theirs"), "other": md5(b"o")})
    assert (tmp_path / "mine").read_bytes() == b"my own version"
    assert listing(tmp_path) == ["mine", "other"]


def test_fetch_keeps_nothing_of_a_file_with_a_wrong_checksum(tmp_path: pathlib.Path, serve: Serve) -> None:
    base = serve({"a": b"fine", "b": b"tampered"})
    with pytest.raises(DataError) as caught:
        fetch(tmp_path, base, {"a": md5(b"fine"), "b": md5(b"original")})
    assert listing(tmp_path) == ["a"]
    for part in (f"{base}b", md5(b"tampered"), md5(b"original")):
        assert part in str(caught.value)


def test_fetch_errors_name_the_files_and_the_folder(tmp_path: pathlib.Path, serve: Serve, nobody: str) -> None:
    folder = tmp_path / "mnist"
    for base, reason in ((serve({}), "404"), (nobody, "refused")):
        with pytest.raises(DataError) as caught:
            fetch(folder, base, {"one.gz": "0", "two.gz": "0"})
        message = str(caught.value)
        assert f"one.gz is not in {folder}" in message
        assert f"Put these files into {folder}: one.gz, two.gz" in message
        assert base in message
        assert reason in message
        assert "--data-dir" in message
        assert "OFFBEAT_DATA" in message
        assert not folder.exists()


def test_fetch_when_the_connection_breaks(tmp_path: pathlib.Path, answer: Answer) -> None:
    for raw in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this"):
        with pytest.raises(DataError):
            fetch(tmp_path, answer(raw), {"a": md5(b"whole")})
        assert listing(tmp_path) == []


@pytest.mark.parametrize(
    "raw",
    [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nonly this"],
    ids=["another protocol", "a broken chunk"],
)
def test_fetch_from_a_server_with_invalid_http(tmp_path: pathlib.Path, answer: Answer, raw: bytes) -> None:
    with pytest.raises(DataError):
        fetch(tmp_path, answer(raw), {"a": md5(b"whole")})
    assert listing(tmp_path) == []


def test_fetch_into_a_path_that_is_not_a_folder(tmp_path: pathlib.Path, nobody: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file"):
        fetch(tmp_path / "file" / "mnist", nobody, {"a": "0"})
