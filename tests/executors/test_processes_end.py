"""Separate programs that train in worker processes, and how they end."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.support import gone, wait_until

# A script as users write them: it uses threads, defines classes and has no guard.
SCRIPT = """
import os, time
import numpy as np, torch
import offbeat as ob

PARENT = os.getpid()

torch.set_num_threads(2)
torch.randn(300, 300) @ torch.randn(300, 300)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(20, 4)
    def forward(self, x):
        if os.getpid() != PARENT:
            time.sleep(60)
        return self.layer(x)

class Mine(ob.SGD):
    pass

x, y = np.zeros((80, 20), dtype=np.float32), np.arange(80) % 4
ob.run(data=ob.from_arrays(x, y, x, y), clients=20, model=Net, algorithm=ob.FedBuff(), client=Mine(),
       executor="processes")
"""
CONFIG = """
executor = "processes"
rounds = 100000
[algorithm]
name = "fedbuff"
[client]
name = "sgd"
steps = 3
batch_size = 8
[data]
name = "synthetic"
clients = 20
[model]
name = "mlp"
"""


@contextlib.contextmanager
def program(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Start a program and wait for its workers."""
    command = [sys.executable, "-W", "error", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            wait_until(lambda: children(process.pid) or process.poll() is not None)
            time.sleep(0.2)
            yield process, children(process.pid)
        finally:
            process.kill()


def children(parent: int) -> list[int]:
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            number, rest = stat.parent.name, stat.read_text().rpartition(")")[2].split()
            if int(rest[1]) == parent:
                found.append(int(number))
    return found


def test_kill_nine_of_the_parent_leaves_no_process(tmp_path: pathlib.Path) -> None:
    """A script without a guard, killed while its workers are in the middle of a long job."""
    (tmp_path / "script.py").write_text(SCRIPT)
    with program(str(tmp_path / "script.py")) as (process, workers):
        assert process.poll() is None, process.communicate()
        process.kill()
        process.wait(300)
        assert workers
        assert all(gone(pid) for pid in workers)


def test_ctrl_c_reaches_only_the_parent(tmp_path: pathlib.Path) -> None:
    """A terminal signals the whole group: the workers finish their jobs, and the run ends cleanly."""
    (tmp_path / "run.toml").write_text(CONFIG)
    out = tmp_path / "out"
    with program("-m", "offbeat", "run", str(tmp_path / "run.toml"), "--out", str(out), "--quiet") as (
        process,
        workers,
    ):
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=300)
    assert process.returncode == 130, (output, errors)
    assert "resume with: offbeat resume" in errors
    assert "Traceback" not in errors
    assert json.loads((out / "status.json").read_text())["state"] == "interrupted"
    assert len(list((out / "checkpoint").glob("*.pt"))) == 1
    assert workers
    assert all(gone(pid) for pid in workers)
