"""The executors' dependencies: torch and NumPy alone, and the interface of `offbeat.executors.gpu`."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import pytest

import offbeat.executors

PROGRAM = """
import sys
BLOCKED = set("annotated_types click flwr matplotlib pydantic pydantic_core ray rich safetensors scipy sklearn "
              "starlette tomli_w triton".split())
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Block())
import offbeat as ob
from offbeat.data import Synthetic
from offbeat.models import LR
result = ob.run(data=Synthetic(examples=200, test_examples=50), clients=5, model=LR(), algorithm=ob.FedBuff(),
                scheduler=ob.Buffered(concurrency=4, buffer=2), rounds=4, executor=sys.argv[1])
assert result.summary["executor"] == sys.argv[1]
assert not BLOCKED & {name.split(".")[0] for name, module in sys.modules.items() if module is not None}
"""


@pytest.mark.parametrize("executor", ["sequential", "vectorized", "processes"])
def test_executors_need_only_torch_and_numpy(executor: str) -> None:
    command = [sys.executable, "-c", PROGRAM, executor]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def test_only_the_gpu_package_knows_its_modules() -> None:
    """Other modules use the names that `offbeat.executors.gpu` exports, and `gpu` does not use the executors."""
    package = pathlib.Path(offbeat.executors.__file__).parent
    inner = {f"offbeat.executors.gpu.{path.stem}" for path in (package / "gpu").glob("*.py")}
    for path in package.rglob("*.py"):
        imported = {
            node.module for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)
        }
        if "gpu" not in path.relative_to(package).parts:
            assert not imported & inner, path
        else:
            others = {name for name in imported if name and name.startswith("offbeat.executors")}
            assert all(name.startswith("offbeat.executors.gpu") for name in others), path
