"""Full disks, read-only folders, and processes killed between two files."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.support.experiments import interrupted_at, small

import offbeat as ob
from offbeat import files
from offbeat.cache import Disk
from offbeat.report import read
from offbeat.runs import api, folder
from offbeat.runs.folder import writer
from offbeat.server.session import CACHE_FOLDER

STORE = """
import sys, torch
from offbeat.cache import Disk
cache = Disk(directory=sys.argv[1])
cache.start(torch.zeros(100_000), 50)
try:
    for client in range(50):
        cache.store(client, torch.ones(100_000), 0)
except OSError as error:
    print(error.strerror)
"""


@pytest.fixture
def tiny(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Mount a disk of two megabytes."""
    place = tmp_path / "tiny"
    place.mkdir()
    mount = shutil.which("mount")
    made = mount and subprocess.run([mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True)
    if not made or made.returncode:
        pytest.skip("may not mount a small disk")
    yield place
    subprocess.run(["umount", place], check=True)


def fill(disk: pathlib.Path) -> None:
    with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
        while ballast.write(bytes(512)):
            pass


def test_a_cache_on_a_full_disk_raises_an_error_instead_of_a_bus_error(tiny: pathlib.Path) -> None:
    command = [sys.executable, "-c", STORE, str(tiny / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{os.strerror(errno.ENOSPC)}\n"


def test_a_run_on_a_full_disk_reports_it_and_resumes_when_there_is_space(tiny: pathlib.Path) -> None:
    interrupted_at(tiny / "run", 12)
    fill(tiny)
    with pytest.raises(ob.RunFolderError, match=r"cannot .* No space left on device"):
        api.resume(tiny / "run")
    (tiny / "ballast").unlink()
    assert torch.equal(api.resume(tiny / "run").x, api.execute(small()).x)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system cannot reserve blocks")
def test_a_cache_on_disk_reserves_its_blocks(tmp_path: pathlib.Path) -> None:
    cache = Disk(directory=str(tmp_path))
    cache.start(torch.zeros(10_000), 50)
    cache.store(7, torch.ones(10_000), 0)
    status = (tmp_path / "cache.bin").stat()
    assert status.st_blocks * 512 >= status.st_size


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_run_that_starts_on_a_full_disk_says_so_and_can_start_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(folder.UpdateLog, "flush", full)
        with pytest.raises(ob.RunFolderError, match="No space left"):
            api.execute(small(), out=tmp_path / "run")
    record = read.read(tmp_path / "run")
    assert (record.state, record.problem) == ("failed", "[Errno 28] No space left on device")
    assert api.execute(small(), out=tmp_path / "run").summary["rounds"] == 30


def test_a_run_whose_status_cannot_be_written_at_all_leaves_nothing_behind(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder.UpdateLog, "flush", full)
    monkeypatch.setattr(writer.RunFolder, "fail", full)
    with pytest.raises(ob.RunFolderError, match="No space left"):
        api.execute(small(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_disk_fills_up_during_a_run(tiny: pathlib.Path) -> None:
    """Also then the folder states why the run ended, and its callbacks hear of it."""
    outcomes: list[str] = []

    class Last(ob.Callback):
        def on_evaluation(self, run: ob.callbacks.RunInfo, line: dict[str, Any]) -> None:
            if line["version"] == 12:
                fill(tiny)

        def on_run_end(self, run: ob.callbacks.RunInfo, outcome: ob.callbacks.RunOutcome) -> None:
            outcomes.append(outcome.state)

    long = dataclasses.replace(small(20_000), evaluation=ob.Evaluation(every=1))
    with pytest.raises(ob.RunFolderError, match="No space left on device"):
        api.execute(long, out=tiny / "run", callbacks=[Last()])
    assert outcomes == ["failed"]
    record = read.read(tiny / "run")
    assert (record.state, "No space left" in (record.problem or "")) == ("failed", True)


def test_a_folder_that_cannot_be_written_is_not_resumed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_at(tmp_path / "run", 12)
    plain = pathlib.Path.open

    def refused(self: pathlib.Path, mode: str = "r", *more: object, **named: object) -> object:
        if mode != "r" and mode != "rb":
            raise OSError(errno.EROFS, "Read-only file system")
        return plain(self, mode, *more, **named)  # type: ignore[call-overload]

    with monkeypatch.context() as patched:
        patched.setattr(pathlib.Path, "open", refused)
        with pytest.raises(ob.RunFolderError, match=r"cannot resume .*run: Read-only file system"):
            api.resume(tmp_path / "run")
    assert api.resume(tmp_path / "run").summary["rounds"] == 30


@pytest.mark.parametrize(
    "kept", [["checkpoint"], ["checkpoint", ".lock", "metrics.jsonl", "updates.npy", "status.json"]]
)
def test_a_run_killed_while_creating_its_folder_starts_over(kept: list[str], tmp_path: pathlib.Path) -> None:
    interrupted_at(tmp_path / "run", 0)
    for place in (tmp_path / "run").iterdir():
        if place.name not in kept:
            place.unlink()
    for place in (tmp_path / "run/checkpoint").iterdir():
        place.unlink()
    if "metrics.jsonl" in kept:
        (tmp_path / "run/metrics.jsonl").write_bytes(b"")
    assert api.execute(small(), out=tmp_path / "run").summary["rounds"] == 30


def test_a_folder_of_another_program_is_not_touched(tmp_path: pathlib.Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ob.RunFolderError, match="exists and is not empty"):
        api.execute(small(), out=tmp_path)


def test_resume_completes_a_run_that_was_killed_after_its_summary(tmp_path: pathlib.Path) -> None:
    api.execute(small(), out=tmp_path / "run")
    folder.write_status(tmp_path / "run", "running", folder.Origin())
    (tmp_path / "run/checkpoint/00000007.pt").touch()
    (tmp_path / "run" / CACHE_FOLDER).mkdir()
    with pytest.raises(ob.RunFolderError, match="is finished: 30 rounds"):
        api.resume(tmp_path / "run")
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "finished"
    assert not list((tmp_path / "run/checkpoint").iterdir())
    assert not (tmp_path / "run" / CACHE_FOLDER).exists()


def test_the_config_is_written_last(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run killed before it never began; one killed after it knows where its modules are."""
    seen: list[set[str]] = []
    plain = files.write_atomic

    def noted(path: pathlib.Path, body: bytes) -> None:
        if path.name == "config.toml":
            seen.append({place.name for place in path.parent.iterdir()})
        plain(path, body)

    monkeypatch.setattr(writer, "write_atomic", noted)
    api.execute(small(), out=tmp_path / "run")
    assert seen == [{"checkpoint", ".lock", "metrics.jsonl", "updates.npy", "status.json", "setting.json"}]
