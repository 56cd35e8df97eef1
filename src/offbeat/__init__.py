"""Asynchronous federated learning with heterogeneous clients, simulated in virtual time or deployed on Flower.

    import offbeat as ob
    result = ob.run(data=…, partition=…, model=…, algorithm=ob.CA2FL(), rounds=100)

The top level holds what a first script needs; families live in namespaces such as `ob.algorithms`, `ob.schedulers`,
`ob.delays` or `ob.partitions`. `__init__.pyi` lists every public name once: type checkers read it, and so does this
module, which imports a name when it is first used, so that `offbeat --help` does not wait for torch.
"""

from __future__ import annotations

import ast
import importlib
import pathlib
from typing import Any


def _public_names() -> dict[str, tuple[str, str]]:
    """Return the home (module, attribute) of each public name, as the stub lists it."""
    stub = ast.parse(pathlib.Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes: dict[str, tuple[str, str]] = {}
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            homes |= {alias.asname or alias.name: (node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.Assign):
            homes[ast.unparse(node.targets[0])] = homes.pop(ast.unparse(node.value))
    return homes


_HOMES = _public_names()

_FAMILIES = [
    "algorithms", "client_rules", "schedulers", "partitions", "delays", "callbacks", "augmentations", "datasets",
]  # fmt: skip
"""Namespaces that hold names which the first release had at the top level."""

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(_missing(name))
    module_name, attribute = _HOMES[name]
    if module_name == __name__:  # a subpackage; asking this module for it would come back here
        value = importlib.import_module(f"{module_name}.{attribute}")
    else:
        module = importlib.import_module(module_name)
        try:
            value = getattr(module, attribute)
        except AttributeError:
            value = importlib.import_module(f"{module_name}.{attribute}")
    globals()[name] = value
    return value


def _missing(name: str) -> str:
    """Return the message for an unknown name; it names the new home of one that was renamed or moved."""
    from offbeat.renames import renamed_name

    if new := renamed_name(name):
        return f"offbeat.{name} is now offbeat.{new}"
    for family in _FAMILIES if not name.startswith("_") else ():
        if hasattr(__getattr__(family), name):
            return f"offbeat.{name} is now offbeat.{family}.{name}"
    return f"module 'offbeat' has no attribute {name!r}"


def __dir__() -> list[str]:
    return sorted(__all__)
