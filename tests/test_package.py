"""The public names of the package."""

from __future__ import annotations

import ast
import operator
import pathlib
import subprocess
import sys
from collections import Counter

import pytest

import offbeat as ob
from offbeat.scheduling import Available


def test_every_public_name_resolves() -> None:
    names = dir(ob)
    assert {"run", "CA2FL", "Experiment", "schedulers"} <= set(names)
    assert all(getattr(ob, name) is not None for name in names)
    assert ob.schedulers.Available is Available


@pytest.mark.slow
def test_every_public_name_resolves_first() -> None:
    """A name resolves whichever one a program uses first: importing one name must not depend on another."""
    program = """
import sys
import offbeat
for name in dir(offbeat):
    for module in [module for module in sys.modules if module.startswith("offbeat.")]:
        del sys.modules[module]
    for loaded in set(vars(offbeat)) & set(dir(offbeat)):
        delattr(offbeat, loaded)
    getattr(offbeat, name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_listed_once() -> None:
    stub = ast.parse(pathlib.Path(ob.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imported = [alias for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    counts = Counter(alias.asname or alias.name for alias in imported)
    assert counts
    assert [name for name, count in counts.items() if count > 1] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ob.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Anarchic", "schedulers.Anarchic"),
        ("ByOwner", "partitions.Natural"),
        ("Classes", "partitions.LabelShards"),
        ("Dispatch", "schedulers.Scheduler"),
        ("Ending", "callbacks.RunOutcome"),
        ("FedPer", "algorithms.FedLuckFixed"),
        ("Gate", "UpdateValidator"),
        ("KeepBusy", "Continuous"),
        ("MFCA2FL", "algorithms.MFCA2FL"),
        ("Quantity", "partitions.QuantitySkew"),
        ("World", "Environment"),
    ],
)
def test_a_name_of_the_first_release_is_pointed_to_its_replacement(old: str, new: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(ob, old)
    assert str(caught.value) == f"offbeat.{old} is now offbeat.{new}"
    assert operator.attrgetter(new)(ob) is not None
