"""Execute a notebook: with nbclient in a kernel, or without it cell by cell in a process of its own.

Command line: `python -m tests.support.notebooks NOTEBOOK.ipynb` runs it in the current folder and prints the types of
what each cell shows, as JSON.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import types
from typing import Any

from tests.support.pages import ROOT

SHOWS = {"_repr_png_": "image/png", "_repr_html_": "text/html"}
SECONDS = 600  # ends what would hang, however busy the machine is


def cells(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook, each with its `cell_type` and `source`."""
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def execute(path: pathlib.Path, folder: pathlib.Path) -> list[set[str]]:
    """Run a notebook in a folder; return the types of what each code cell shows, and raise the error of a cell."""
    if importlib.util.find_spec("nbclient") and importlib.util.find_spec("ipykernel"):
        return _in_kernel(path, folder)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.support.notebooks", str(path)],
        cwd=folder, env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "MPLBACKEND": "agg"},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [set(shown) for shown in json.loads(done.stdout.splitlines()[-1])]


def _in_kernel(path: pathlib.Path, folder: pathlib.Path) -> list[set[str]]:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [{kind for output in cell.outputs for kind in output.get("data", ())} for cell in code]


def _run(path: pathlib.Path) -> list[list[str]]:
    """Run the code cells in one namespace; return the types of what the last line of each would show."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    shown = []
    for cell in cells(path):
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]), str(path))
            last = tree.body[-1]
            tree.body = tree.body[:-1] if isinstance(last, ast.Expr) else tree.body
            exec(compile(tree, str(path), "exec"), vars(module))
            value = None
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), str(path), "eval"), vars(module))
            shown.append([] if value is None else ["text/plain", *_kinds(value)])
    return shown


def _kinds(value: object) -> list[str]:
    return [kind for method, kind in SHOWS.items() if hasattr(value, method) and getattr(value, method)()]


if __name__ == "__main__":
    print(json.dumps(_run(pathlib.Path(sys.argv[1]).resolve())))  # noqa: T201
