"""The two things that everybody does: run an experiment, resume a run."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from offbeat.algorithms import Algorithm
from offbeat.data import Augment, Dataset, Partition, Source
from offbeat.errors import ConfigError, RunFolderError, nearest
from offbeat.models import Model
from offbeat.runs.assembly import Assembly
from offbeat.runs.callbacks import Callback
from offbeat.runs.custom import CustomModel, CustomPartition, CustomSource
from offbeat.runs.data import Data
from offbeat.runs.drive import alone
from offbeat.runs.experiment import Evaluation, Experiment
from offbeat.runs.folder import Origin, read_json
from offbeat.runs.interrupt import interruptible
from offbeat.runs.result import Result, Watch
from offbeat.runs.run import Run, settle
from offbeat.runs.setting import setting
from offbeat.scheduling.schedulers import SCHEDULERS, Scheduler

Path = str | os.PathLike[str]


def run(
    *,
    data: Data | Dataset | Source,
    model: Model | nn.Module | Callable[..., nn.Module],
    algorithm: Algorithm,
    partition: Partition | Sequence[Any] | None = None,
    clients: int | None = None,
    augment: Augment | None = None,
    scheduler: Scheduler | None = None,
    evaluation: Evaluation | int | None = None,
    out: Path | None = None,
    resume: bool = False,
    data_dir: Path | None = None,
    watch: Watch | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Result:
    """Run one experiment.

    data        a `Dataset` (see `from_arrays`, `from_datasets`), one of offbeat's sources, or a whole `Data`
    partition   one array of indices a client, or one of offbeat's partitions with `clients`
    augment     what is done to the images of every batch in training, such as `CropFlip()`
    model       a module, a function or class that makes one, or one of offbeat's models
    scheduler    the algorithm's own with its defaults when left out
    evaluation  an `Evaluation`, or just the number of versions between two of them
    out         folder for the run; nothing is written when left out
    callbacks   who else is told how it goes, such as `TensorBoard()`
    resume      go on with the same run in `out`, if one was begun there and not finished
    settings    the other fields of `Experiment`: client, world, rounds, virtual_seconds, seed, device, executor
    """
    valid = {field.name for field in dataclasses.fields(Experiment)}
    if unknown := settings.keys() - valid:
        raise ConfigError(f"unknown setting; {nearest(min(unknown), sorted(valid))}", key=min(unknown))
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(f"{algorithm!r} is not an algorithm object, such as FedBuff()", key="algorithm")
    if not isinstance(data, Data):
        data = _data(data, clients, partition, augment)
    if isinstance(evaluation, int):
        evaluation = Evaluation(every=evaluation)
    if evaluation is not None:
        settings["evaluation"] = evaluation
    experiment = Experiment(
        data=data,
        model=model if isinstance(model, Model) else CustomModel(make=model),
        algorithm=algorithm,
        scheduler=scheduler or SCHEDULERS[algorithm.schedulers[0]](),
        **settings,
    )
    if resume and out is not None and (pathlib.Path(out) / "config.toml").is_file():
        result = continue_(experiment, pathlib.Path(out), data_dir, watch, callbacks)
    else:
        result = execute(experiment, out=out, data_dir=data_dir, watch=watch, callbacks=callbacks)
    if result.interrupted:
        raise KeyboardInterrupt(f"interrupted at round {result.summary['rounds']}")
    return result


def _data(
    source: Dataset | Source,
    clients: int | None,
    partition: Partition | Sequence[Any] | None,
    augment: Augment | None,
) -> Data:
    own: dict[str, Any] = {"source": CustomSource(make=source) if isinstance(source, Dataset) else source}
    if partition is not None:
        own["partition"] = partition if isinstance(partition, Partition) else CustomPartition(make=partition)
    return Data(clients=clients, augment=augment, **own)


def execute(
    experiment: Experiment,
    *,
    out: Path | None = None,
    data_dir: Path | None = None,
    modules: Path | None = None,
    watch: Watch | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Run an experiment; everything is checked before the folder is made.  Ctrl-C ends it in good order."""
    with interruptible() as interrupted:
        return alone(
            begin(
                experiment, interrupted, out=out, data_dir=data_dir, modules=modules, watch=watch, callbacks=callbacks
            )
        )


def begin(
    experiment: Experiment,
    interrupted: threading.Event,
    *,
    out: Path | None = None,
    data_dir: Path | None = None,
    modules: Path | None = None,
    watch: Watch | None = None,
    callbacks: Sequence[Callback] = (),
    runs: int = 1,
) -> Run:
    """A run that is ready to go, with its folder; of so many that will be trained together."""
    assembly = experiment.assemble(data_dir, runs)
    folder = pathlib.Path(out) if out is not None else None
    new = Run(assembly, interrupted=interrupted, watch=watch, folder=folder, callbacks=callbacks)
    if out is not None:
        origin = Origin(*(str(pathlib.Path(p).resolve()) if p is not None else None for p in (data_dir, modules)))
        new.open(pathlib.Path(out), resolved(experiment, assembly), origin, setting(assembly))
    return new


def resume(
    path: Path,
    *,
    data_dir: Path | None = None,
    watch: Watch | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Go on with an interrupted run.  The result is that of a run that was never interrupted."""
    folder = pathlib.Path(path)
    return continue_(stored(folder), folder, data_dir, watch, callbacks)


def stored(folder: pathlib.Path) -> Experiment:
    """The experiment of a run folder."""
    from offbeat.runs.config import parse, read

    if not (folder / "config.toml").is_file():
        raise RunFolderError(f"{folder} is not a run folder: it has no config.toml")
    modules = Origin.of(folder).modules
    if modules is not None and modules not in sys.path:
        sys.path.insert(0, modules)
    return parse(read(folder / "config.toml"))


def continue_(
    experiment: Experiment,
    folder: pathlib.Path,
    data_dir: Path | None,
    watch: Watch | None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Go on with an experiment in its folder."""
    if (folder / "events.jsonl").is_file():
        raise RunFolderError(f"{folder} is of a deployment; the `offbeat deploy` that began it goes on with it")
    if (folder / "summary.json").is_file():
        settle(folder)
        raise RunFolderError(f"{folder} is finished: {read_json(folder / 'summary.json')['rounds']} rounds")
    with interruptible() as interrupted:
        return alone(reopen(experiment, interrupted, folder, data_dir, watch, callbacks))


def reopen(
    experiment: Experiment,
    interrupted: threading.Event,
    folder: pathlib.Path,
    data_dir: Path | None,
    watch: Watch | None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """A run that was interrupted, ready to go on."""
    assembly = experiment.assemble(data_dir or Origin.of(folder).data_dir)
    if resolved(experiment, assembly) != (folder / "config.toml").read_text(encoding="utf-8"):
        raise RunFolderError(f"{folder} holds another experiment, or is of another version: compare its config.toml")
    old = Run(assembly, interrupted=interrupted, watch=watch, folder=folder, callbacks=callbacks)
    old.reopen(folder)
    return old


def resolved(experiment: Experiment, assembly: Assembly) -> str:
    """The experiment's complete TOML, with what was chosen for it."""
    from offbeat.runs.config import dump

    compiled = assembly.executor.compiled if experiment.device == "cuda" else experiment.compile
    return dump(dataclasses.replace(experiment, executor=assembly.executor_name, compile=compiled))
