"""The path of a newcomer: the README's first commands, an own model, a sweep, a comparison, a figure for a paper."""

from __future__ import annotations

import os
import pathlib
import resource
import shlex
import subprocess
import sys

from tests.support.pages import ROOT, blocks

PROCESSOR_SECONDS = 60  # for the whole path
OWN = """
import numpy as np
from torch import nn

import offbeat as ob


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(12, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.hidden(x).tanh())


rng = np.random.default_rng(0)
y = rng.integers(3, size=900)
x = (rng.normal(size=(900, 12)) + 2 * np.eye(12)[y]).astype(np.float32)
settings = {
    "data": ob.from_arrays(x[:600], y[:600], x[600:], y[600:]),
    "clients": 20,
    "partition": ob.partitions.Dirichlet(alpha=0.3),
    "model": Net,
    "client": ob.SGD(lr=0.1, steps=5, batch_size=10),
    "scheduler": ob.Buffered(concurrency=8, buffer=4),
    "rounds": 30,
    "evaluation": 3,
}
result = ob.run(**settings, algorithm=ob.CA2FL())
assert isinstance(result.model, Net)
print("accuracy", result.accuracy)

sweep = ob.sweep(**settings, algorithm=[ob.FedBuff(), ob.CA2FL()], seeds=range(4), out="runs/own")
assert sweep["ca2fl"][0].accuracy == result.accuracy
found = sweep.compare(metric="accuracy", at={"virtual_seconds": 10}, baseline="fedbuff")
(difference,) = found.differences
assert difference.seeds == (0, 1, 2, 3) and difference.low <= difference.mean <= difference.high
print(found)
with open("table.tex", "w") as file:
    file.write(found.latex())
"""


def commands() -> list[str]:
    """Return what the README says to do first with a TOML file."""
    lines = [
        line for block in blocks(ROOT / "README.md") if block.language == "bash" for line in block.text.splitlines()
    ]
    first = ("offbeat run ", "offbeat sweep ", "offbeat report ", "offbeat compare ")
    return [line.split("#")[0].strip() for line in lines if line.startswith(first)]


def processor_seconds() -> float:
    """Return the processor time of the programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(folder: pathlib.Path, *arguments: str) -> str:
    one = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "COLUMNS": "120", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=os.environ | one, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def test_from_the_first_command_to_a_figure(tmp_path: pathlib.Path) -> None:
    before = processor_seconds()
    (toml,) = (block.text for block in blocks(ROOT / "README.md") if block.language == "toml")
    (program,) = (block.text for block in blocks(ROOT / "README.md") if block.language == "python")
    for name, text in (("my.toml", toml), ("first.py", program), ("own.py", OWN)):
        (tmp_path / name).write_text(text, encoding="utf-8")

    kinds = [command.split()[1] for command in commands()]
    assert kinds == ["run", "sweep", "report", "compare"]
    outputs = [run(tmp_path, "-m", *shlex.split(command)) for command in commands()]
    assert "ca2fl" in outputs[1]
    assert (tmp_path / "report.html").is_file()
    assert "accuracy of the last evaluation" in outputs[3]

    assert float(run(tmp_path, "first.py").split()[0]) > 0.9

    lines = run(tmp_path, "own.py").splitlines()
    assert float(lines[0].removeprefix("accuracy ")) > 0.5
    assert any("ca2fl − fedbuff" in line and "of 4" in line for line in lines)
    assert r"ca2fl $-$ fedbuff" in (tmp_path / "table.tex").read_text(encoding="utf-8")

    assert "figures" in run(tmp_path, "-m", "offbeat", "report", "runs/own", "--only", "accuracy", "--pdf")
    figures = sorted((tmp_path / "figures").glob("*.pdf"))
    assert [figure.stem for figure in figures] == ["accuracy-bytes_up", "accuracy-version", "accuracy-virtual_seconds"]
    assert all(figure.read_bytes().startswith(b"%PDF") for figure in figures)
    assert processor_seconds() - before < PROCESSOR_SECONDS, "longer than a newcomer waits"
