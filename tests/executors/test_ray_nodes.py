"""Ray clusters of real processes: two nodes that are joined by address, and a cluster that a program starts."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from tests.support import gone
from tests.support.ray_settings import SETTINGS

import offbeat as ob
from offbeat.errors import OffbeatError
from offbeat.runs.config import parse

pytest.importorskip("ray", reason="needs the extra 'ray'")
if sys.platform != "linux":
    pytest.skip("looks for processes in /proc", allow_module_level=True)

CONFIG = """
executor = "{executor}"
rounds = {rounds}
[algorithm]
name = "ca2fl"
[client]
name = "scaffold"
steps = {steps}
batch_size = 8
[scheduler]
concurrency = 8
buffer = 4
[data]
name = "digits"
clients = 20
[model]
name = "{model}"
[evaluation]
every = 1
"""
T = TypeVar("T")
MARK = "ray::RayActor.train"[:15]  # process name of a worker that trains


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    """Provide a folder for Ray's files; the paths of sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as name:
        yield pathlib.Path(name)


def descendants(parent: int) -> dict[int, str]:
    """Return the names of all descendants, by process id."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended meanwhile
            before, _, rest = stat.read_text().rpartition(")")
            pid = int(stat.parent.name)
            names[pid] = before.split("(", 1)[1]
            children.setdefault(int(rest.split()[1]), []).append(pid)
    found, queue = {}, [parent]
    while queue:
        for child in children.get(queue.pop(), []):
            found[child] = names[child]
            queue.append(child)
    return found


@contextlib.contextmanager
def node(folder: pathlib.Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a cluster node with one core."""
    environment = os.environ | SETTINGS | {"RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "token"}
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1", "--disable-usage-stats",
        f"--object-store-memory={100 << 20}", *arguments,
    ]  # fmt: skip
    with (
        (folder / "log").open("ab") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as daemon,
    ):
        try:
            yield daemon
        finally:
            processes = descendants(daemon.pid)
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()
            for pid in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def eventually(look: Callable[[], T], seconds: float = 300) -> T:
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)
    return found


@contextlib.contextmanager
def program(place: pathlib.Path, environment: dict[str, str], **settings: object) -> Iterator[subprocess.Popen[str]]:
    """Start `offbeat run` as from a terminal."""
    (place / "run.toml").write_text(CONFIG.format(**settings))
    command = [sys.executable, "-W", "error", "-m", "offbeat", "run", "run.toml", "--out", "out", "--quiet"]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with subprocess.Popen(
        command, env=plain | {"OMP_NUM_THREADS": "1"} | environment, cwd=place, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def trains(daemon: int) -> bool:
    """Return whether a worker of a node is training."""
    return MARK in descendants(daemon).values()


def lines(place: pathlib.Path) -> int:
    """Return the number of evaluations that a run has recorded."""
    with contextlib.suppress(OSError):
        return (place / "out" / "metrics.jsonl").read_text().count("\n")
    return 0


def test_a_node_that_dies_changes_no_bit(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Both nodes of a cluster train for a run; one is killed in the middle of a job, and others take over its jobs."""
    with node(folder, "--head", "--port=0", "--include-dashboard=false") as first:
        record = folder / "ray" / "ray_current_cluster"
        address = eventually(lambda: record.exists() and record.read_text().strip())
        with node(folder, f"--address={address}") as second:
            raylet = eventually(lambda: [pid for pid, name in descendants(second.pid).items() if name == "raylet"])[0]
            joined = SETTINGS | {"RAY_ADDRESS": str(address), "RAY_AUTH_MODE": "token"}
            with program(tmp_path, joined, executor="ray", rounds=14, steps=10, model="cnn") as process:
                both = (first.pid, second.pid)
                eventually(lambda: all(map(trains, both)) or process.poll() is not None)
                os.kill(raylet, signal.SIGKILL)
                killed_at = lines(tmp_path)
                output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, (output, errors)
    assert 0 < killed_at < 14
    table = tomllib.loads(CONFIG.format(executor="sequential", rounds=14, steps=10, model="cnn"))
    ob.execute(parse(table), out=tmp_path / "whole")
    for name in ("model.safetensors", "updates.npy"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_ctrl_c_ends_the_run_and_its_own_cluster(tmp_path: pathlib.Path, folder: pathlib.Path) -> None:
    """A terminal signals the whole group: the run ends cleanly, and nothing is left of the cluster."""
    alone = {"RAY_TMPDIR": str(folder), "HOME": str(folder), "RAY_worker_niceness": "0"}
    with program(tmp_path, alone, executor="ray", rounds=100_000, steps=3, model="mlp") as process:
        eventually(lambda: lines(tmp_path) > 3 or process.poll() is not None)
        others = descendants(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=300)
    assert process.returncode == 130, (output, errors)
    assert "resume with: offbeat resume" in errors
    assert "Traceback" not in errors
    assert json.loads((tmp_path / "out" / "status.json").read_text())["state"] == "interrupted"
    assert {"raylet", "gcs_server"} <= set(others.values())
    assert all(gone(pid) for pid in others)
    assert not list(folder.iterdir()), "neither files of the cluster nor a token in the home"


def test_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from offbeat.executors.cluster import Cluster

    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(OffbeatError, match=r"the Ray cluster at nowhere \(RAY_ADDRESS\) cannot be joined: "):
        Cluster("CPU")
    assert signal.getsignal(signal.SIGTERM) is handler
