"""What users bring along: their own models, data and partitions, as objects or as names ("package.module:thing")."""

from __future__ import annotations

import importlib
import inspect
import pathlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from torch import nn

from offbeat.data import Dataset, Partition, Source, from_datasets
from offbeat.errors import ConfigError, DataError
from offbeat.models import Model

PYTHON = "python:"  # stands before the name of what only a Python program has


def resolve(path: str) -> Any:
    """The thing that "package.module:thing" names."""
    module_name, _, thing = path.partition(":")
    if path.startswith(PYTHON):
        raise ConfigError(
            f"{thing} was given from Python and cannot be named in a file; run the same program again with resume=True",
            key="name",
        )
    here = str(pathlib.Path.cwd())
    if here not in sys.path:  # as `python -m` has it; console scripts do not
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except (ImportError, ValueError, TypeError) as error:
        raise ConfigError(f"cannot import {module_name!r} of {path!r}: {error}", key="name") from error
    for part in thing.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{module_name!r} has no {thing!r}", key="name")
        found = getattr(found, part)
    return found


def name_of(thing: object) -> str:
    """The name under which `resolve` finds a function or class again, or one that says that it cannot be found."""
    module, name = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "")
    try:
        if module and module != "__main__" and name and resolve(f"{module}:{name}") is thing:
            return f"{module}:{name}"
    except ConfigError:
        pass
    return f"{PYTHON}{name or type(thing).__qualname__}"


def call(function: Callable[..., Any], offered: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call with the user's options, and with as much of what is offered as the function asks for by name."""
    if not callable(function):
        raise ConfigError(f"{function!r} is not a function or class", key="name")
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        parameters = inspect.signature(lambda: None).parameters
    wanted = {name: value for name, value in offered.items() if name in parameters}
    try:
        return function(**(wanted | dict(options)))
    except TypeError as error:
        raise ConfigError(
            f"{name_of(function)} cannot be called with {sorted(wanted | dict(options))}: {error}"
        ) from error


@dataclass(kw_only=True, frozen=True)
class CustomModel(Model):
    """A user's module, or what makes one.  It is offered `shape`, `classes` and `vocabulary` of the data."""

    make: nn.Module | Callable[..., nn.Module]
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        offered = {"shape": shape, "classes": classes, "vocabulary": vocabulary}
        made = self.make if isinstance(self.make, nn.Module) else call(self.make, offered, self.options)
        if not isinstance(made, nn.Module):
            raise ConfigError(f"{name_of(self.make)} gave {type(made).__name__}, not a torch.nn.Module", key="name")
        return made


@dataclass(kw_only=True, frozen=True)
class CustomSource(Source):
    """A user's data: a `Dataset`, or a function that gives one, or gives (train, test) torch data sets."""

    make: Dataset | Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self, folder: pathlib.Path) -> Dataset:
        made = self.make if isinstance(self.make, Dataset) else call(self.make, {"folder": folder}, self.options)
        if isinstance(made, tuple) and len(made) == 2:
            return from_datasets(*made)
        if not isinstance(made, Dataset):
            raise DataError(
                f"{name_of(self.make)} gave {type(made).__name__}; offbeat.Dataset or (train, test) expected"
            )
        return made


@dataclass(kw_only=True, frozen=True)
class CustomPartition(Partition):
    """A user's partition: one array of indices a client, or a function of labels, clients and rng that gives them."""

    make: Any
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fixed(self) -> int | None:
        """The number of clients that a list of parts is for."""
        return None if callable(self.make) else len(self.make)

    def split(self, labels: Any, clients: int, rng: np.random.Generator) -> list[Any]:
        if callable(self.make):
            made = call(self.make, {"labels": labels, "clients": clients, "rng": rng}, self.options)
            return cast("list[Any]", made)
        return cast("list[Any]", self.make)  # `PartitionedDataset.of` looks at it more closely
