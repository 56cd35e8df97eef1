"""The two things that everybody does: run an experiment, resume a run."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from offbeat.algorithms import Algorithm
from offbeat.data import Dataset, Partition, Source
from offbeat.engine import DISPATCHES, Dispatch
from offbeat.errors import ConfigError, RunFolderError
from offbeat.experiments.experiment import Data, Evaluation, Experiment
from offbeat.experiments.folder import read_json, recorded
from offbeat.experiments.own import OwnModel, OwnPartition, OwnSource
from offbeat.experiments.run import Result, Run, Watch
from offbeat.models import Model

Path = str | os.PathLike[str]


def run(
    *,
    data: Data | Dataset | Source,
    model: Model | nn.Module | Callable[..., nn.Module],
    algorithm: Algorithm,
    partition: Partition | Sequence[Any] | None = None,
    clients: int | None = None,
    dispatch: Dispatch | None = None,
    evaluation: Evaluation | int | None = None,
    out: Path | None = None,
    data_dir: Path | None = None,
    watch: Watch | None = None,
    **settings: Any,
) -> Result:
    """Run one experiment.

    data        a `Dataset` (see `from_arrays`, `from_datasets`), one of offbeat's sources, or a whole `Data`
    partition   one array of indices a client, or one of offbeat's partitions with `clients`
    model       a module, a function or class that makes one, or one of offbeat's models
    dispatch    the algorithm's own with its defaults when left out
    evaluation  an `Evaluation`, or just the number of versions between two of them
    out         folder for the run; nothing is written when left out
    settings    the other fields of `Experiment`: client, world, rounds, virtual_seconds, seed, device, executor
    """
    valid = {field.name for field in dataclasses.fields(Experiment)}
    if unknown := settings.keys() - valid:
        raise ConfigError(f"unknown setting; valid: {', '.join(sorted(valid))}.", key=min(unknown))
    if not isinstance(data, Data):
        data = _data(data, clients, partition)
    if isinstance(evaluation, int):
        evaluation = Evaluation(every=evaluation)
    if evaluation is not None:
        settings["evaluation"] = evaluation
    experiment = Experiment(
        data=data,
        model=model if isinstance(model, Model) else OwnModel(make=model),
        algorithm=algorithm,
        dispatch=dispatch or DISPATCHES[algorithm.dispatches[0]](),
        **settings,
    )
    return execute(experiment, out=out, data_dir=data_dir, watch=watch)


def _data(source: Dataset | Source, clients: int | None, partition: Partition | Sequence[Any] | None) -> Data:
    own: dict[str, Any] = {"source": OwnSource(make=source) if isinstance(source, Dataset) else source}
    if partition is not None:
        own["partition"] = partition if isinstance(partition, Partition) else OwnPartition(make=partition)
    return Data(clients=clients, **own)


def execute(
    experiment: Experiment, *, out: Path | None = None, data_dir: Path | None = None, watch: Watch | None = None
) -> Result:
    """Run an experiment; everything is checked before the folder is made."""
    assembly = experiment.assemble(data_dir)
    new = Run(assembly, watch)
    if out is not None:
        from offbeat.experiments.config import dump

        resolved = dataclasses.replace(experiment, executor=assembly.executor_name)
        new.open(pathlib.Path(out), dump(resolved), str(data_dir) if data_dir is not None else None)
    return new.execute()


def resume(path: Path, *, data_dir: Path | None = None, watch: Watch | None = None) -> Result:
    """Go on with an interrupted run.  The result is that of a run that was never interrupted."""
    from offbeat.experiments.config import parse, read

    folder = pathlib.Path(path)
    if not (folder / "config.toml").is_file():
        raise RunFolderError(f"{folder} is not a run folder: it has no config.toml")
    if (folder / "summary.json").is_file():
        raise RunFolderError(f"{folder} is finished: {read_json(folder / 'summary.json')['rounds']} rounds")
    experiment = parse(read(folder / "config.toml"))
    old = Run(experiment.assemble(data_dir or recorded(folder).get("data_dir")), watch)
    old.reopen(folder)
    return old.execute()
