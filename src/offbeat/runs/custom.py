"""Custom models, data sets and partitions, given as objects or by name ("package.module:name")."""

from __future__ import annotations

import functools
import importlib
import inspect
import pathlib
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.data import Dataset, Partition, Source, from_datasets, from_hugging_face
from offbeat.data.huggingface import is_hugging_face, is_partitioner, partition_of
from offbeat.errors import ConfigError, DataError
from offbeat.models import LoRA, Model
from offbeat.options import Options
from offbeat.tasks import Task
from offbeat.trees import Tree

PYTHON = "python:"  # prefix of the names of objects that cannot be imported
_RESOLVED: dict[int, tuple[Any, str]] = {}  # objects that were found by name, for those that do not know their own


def resolve(path: str) -> Any:
    """Import the object with the name "package.module:name".

    Raises:
        ConfigError: There is no such object.
    """
    module_name, _, name = path.partition(":")
    if path.startswith(PYTHON):
        raise ConfigError(
            f"{name} was passed from Python and cannot be imported by name; run the same program again to resume it",
            key="name",
        )
    here = str(pathlib.Path.cwd())
    if here not in sys.path:  # `python -m` does this; console scripts do not
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except (ImportError, ValueError, TypeError) as error:
        raise ConfigError(f"cannot import {module_name!r} of {path!r}: {error}", key="name") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{module_name!r} has no {name!r}", key="name")
        found = getattr(found, part)
    _RESOLVED[id(found)] = found, path
    return found


def name_of(thing: object) -> str:
    """Return the name with which `resolve` finds a function or class, or one that marks it as not importable."""
    known, path = _RESOLVED.get(id(thing), (None, ""))
    if known is thing and not hasattr(thing, "__qualname__"):
        return path
    module, name = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "")
    try:
        if module and module != "__main__" and name and resolve(f"{module}:{name}") is thing:
            return f"{module}:{name}"
    except ConfigError:
        pass
    return f"{PYTHON}{name or type(thing).__qualname__}"


def call(function: Callable[..., Any], offered: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call a user's function with options and those of the offered arguments that it accepts.

    Args:
        function: The function or class.
        offered: Arguments by name; only those that the function declares are passed.
        options: Arguments that are always passed.
    """
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
    """A custom module, or a function that builds one. It may accept `shape`, `classes` and `vocabulary`."""

    make: nn.Module | Callable[..., nn.Module]
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        """Return the module, or call the function for it."""
        offered = {"shape": shape, "classes": classes, "vocabulary": vocabulary}
        made = self.make if isinstance(self.make, nn.Module) else call(self.make, offered, self.options)
        if not isinstance(made, nn.Module):
            raise ConfigError(f"{name_of(self.make)} returned {type(made).__name__}, not a torch.nn.Module", key="name")
        return made


def lora(
    model: Any,
    *,
    rank: int = 8,
    alpha: float = 16.0,
    targets: Sequence[str] = (),
    train: Sequence[str] = (),
    dropout: float = 0.0,
) -> Any:
    """Add low-rank adapters to the linear layers of a model and freeze everything else.

    Only the adapters are trained and transmitted. All clients of a stack share the frozen weights.

    Args:
        model: A module; or one of offbeat's models, or a function or class that builds a module.
        rank: Rank of the adapters.
        alpha: Scale of the adapters, which is divided by the rank.
        targets: Names of the linear layers to adapt, or the last parts of their names; all when left out.
        train: Names of further layers that are trained as they are, such as a new output layer.
        dropout: Dropout rate of the adapters' inputs.

    Returns:
        A new module that shares its frozen weights with the given one, with the same adapters at each call. For a
        function, class or model of offbeat: a model that adapts what is built, with adapters drawn by the run's seed.

    Raises:
        ConfigError: An option is not valid, or no layer has one of the names.
    """
    base = model if isinstance(model, Model) else CustomModel(make=model)
    adapted = LoRA(model=base, rank=rank, alpha=alpha, targets=tuple(targets), train=tuple(train), dropout=dropout)
    if not isinstance(model, nn.Module):
        return adapted
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return adapted.adapt(model)


@dataclass(kw_only=True, frozen=True)
class CustomTask(Task, Options):
    """A custom task: a `Task`, a function or class that creates one, or a function (outputs, labels) → losses.

    A loss may also be a module of `torch.nn`, with reduction="none".
    """

    make: Any
    options: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def task(self) -> Task:
        """The task itself."""
        if isinstance(self.make, Task):
            return self.make
        if not callable(self.make):
            raise ConfigError(f"{self.make!r} is not a task, nor a loss function of (outputs, labels)", key="task")
        if isinstance(self.make, nn.Module):  # such as torch.nn.MSELoss(reduction="none")
            return Task(loss=self.make)
        missing = None if isinstance(self.make, type) else _missing_arguments(self.make, self.options)
        if missing == 2:
            return Task(loss=functools.partial(self.make, **self.options) if self.options else self.make)
        if missing:
            raise ConfigError(f"{name_of(self.make)} is not a loss function of (outputs, labels)", key="task")
        made = call(self.make, {}, self.options)
        if isinstance(made, nn.Module):
            return Task(loss=made)
        if not isinstance(made, Task):
            raise ConfigError(f"{name_of(self.make)} returned {type(made).__name__}, not an offbeat.Task", key="task")
        return made

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The metrics of the task."""
        return self.task.metrics

    @property
    def pool_key(self) -> Hashable:
        """The identity of the object, or the name of the function with its options."""
        return id(self.make), str(self.options)

    def output_size(self, labels: Tree, default: int) -> int:
        """Return the number of outputs that the task needs."""
        return self.task.output_size(labels, default)

    def loss(self, outputs: Any, labels: Any) -> Tensor:
        """Return the losses of the task."""
        return self.task.loss(outputs, labels)

    def check_labels(self, labels: Tree, classes: int | None) -> None:
        """Check that the labels of a data set suit the task."""
        self.task.check_labels(labels, classes)

    def check_outputs(self, outputs: Any, labels: Tree, classes: int | None) -> None:
        """Check the outputs of a model."""
        self.task.check_outputs(outputs, labels, classes)


def _missing_arguments(function: Callable[..., Any], options: Mapping[str, Any]) -> int:
    """Return how many arguments a function needs besides the options."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters if each.kind in positional and each.default is inspect.Parameter.empty]
    return sum(each.name not in options for each in needed)


@dataclass(kw_only=True, frozen=True)
class CustomSource(Source):
    """A custom data set: a `Dataset`, one of Hugging Face or Flower Datasets, or a function that returns one.

    A function may also return a (train, test) pair of torch data sets.
    """

    make: Any
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self, folder: pathlib.Path) -> Dataset:
        """Return the data set, or call the function for it; the function may accept `folder`."""
        ready = isinstance(self.make, Dataset) or is_hugging_face(self.make)
        made = self.make if ready else call(self.make, {"folder": folder}, self.options)
        if is_hugging_face(made):
            return from_hugging_face(made)
        if isinstance(made, tuple) and len(made) == 2:
            return from_hugging_face(*made) if is_hugging_face(made[0]) else from_datasets(*made)
        if not isinstance(made, Dataset):
            raise DataError(
                f"{name_of(self.make)} returned {type(made).__name__}; "
                "expected an offbeat.Dataset, a Hugging Face data set, or a (train, test) pair of torch data sets"
            )
        return made


@dataclass(kw_only=True, frozen=True)
class CustomPartition(Partition):
    """A custom partition: one array of indices per client, or a function of `labels`, `clients` and `rng`.

    It may also be a partitioner of Flower Datasets.
    """

    needs_labels: ClassVar[bool] = False

    make: Any
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fixed(self) -> int | None:
        """The number of clients, if the partition is a list."""
        return None if callable(self.make) else len(self.make)

    def on(self, dataset: Dataset) -> CustomPartition:
        """Return the partition of a data set: that of a partitioner of Flower Datasets becomes a list."""
        return CustomPartition(make=partition_of(self.make, dataset)) if is_partitioner(self.make) else self

    def split(self, labels: Any, clients: int, rng: np.random.Generator) -> list[Any]:
        """Return the list, or call the function for it."""
        if callable(self.make):
            made = call(self.make, {"labels": labels, "clients": clients, "rng": rng}, self.options)
            return cast("list[Any]", made)
        return cast("list[Any]", self.make)  # `PartitionedDataset.of` validates it
