"""Build an experiment from Python objects, run it and resume a run."""

from __future__ import annotations

import dataclasses
import inspect
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from offbeat.algorithms import Algorithm
from offbeat.client.rules import as_client_rule
from offbeat.data import Augment, Dataset, Partition
from offbeat.data.huggingface import is_federated, is_hugging_face, partitioner_of
from offbeat.errors import ConfigError, RunFolderError, nearest
from offbeat.models import Model
from offbeat.renames import reject_renamed_key
from offbeat.runs.assembly import Assembly
from offbeat.runs.budget import Budget
from offbeat.runs.callbacks import Callback
from offbeat.runs.custom import CustomModel, CustomPartition, CustomSource, CustomTask
from offbeat.runs.data import Data
from offbeat.runs.drive import alone
from offbeat.runs.experiment import Evaluation, Experiment
from offbeat.runs.folder import CONFIG, Origin, is_finished, read_config, read_summary, read_text
from offbeat.runs.interrupt import interruptible, preparing
from offbeat.runs.objects import objects
from offbeat.runs.records import settle
from offbeat.runs.result import RunResult, Watch
from offbeat.runs.run import Run
from offbeat.runs.setting import setting
from offbeat.scheduling import SCHEDULERS, Scheduler
from offbeat.tasks import TASKS, Task

Path = str | os.PathLike[str]


def experiment_of(
    *,
    data: Any,
    model: Model | nn.Module | Callable[..., nn.Module],
    algorithm: Algorithm,
    task: Task | Callable[..., Any] | str | None = None,
    partition: Any = None,
    clients: int | None = None,
    augment: Augment | None = None,
    scheduler: Scheduler | None = None,
    evaluation: Evaluation | int | None = None,
    budget: Budget | Mapping[str, Any] | None = None,
    **settings: Any,
) -> Experiment:
    """Return the experiment of Python objects; see `offbeat.run`.

    Raises:
        ConfigError: A setting is unknown or not valid.
    """
    valid = {field.name for field in dataclasses.fields(Experiment)}
    if unknown := settings.keys() - valid:
        reject_renamed_key("", min(unknown))
        raise ConfigError(f"unknown setting; {nearest(min(unknown), sorted(valid))}", key=min(unknown))
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(f"{algorithm!r} is not an algorithm object, such as FedBuff()", key="algorithm")
    if not isinstance(data, Data):
        data = _data(data, clients, partition, augment)
    if isinstance(evaluation, int):
        evaluation = Evaluation(every=evaluation)
    if evaluation is not None:
        settings["evaluation"] = evaluation
    if budget is not None:
        settings["budget"] = Budget.of(budget)
    if task is not None:
        settings["task"] = _task(task)
    if "client" in settings:
        settings["client"] = as_client_rule(settings["client"])
    return Experiment(
        data=data,
        model=model if isinstance(model, Model) else CustomModel(make=model),
        algorithm=algorithm,
        scheduler=scheduler or SCHEDULERS[algorithm.schedulers[0]](),
        **settings,
    )


def _task(task: Task | Callable[..., Any] | str) -> Task:
    if isinstance(task, str):
        if task not in TASKS:
            raise ConfigError(f"unknown name {task!r}; {nearest(task, list(TASKS))}", key="task")
        return TASKS[task]()
    return task if type(task) in (*TASKS.values(), CustomTask) else CustomTask(make=task)  # type: ignore[return-value]


def _data(source: Any, clients: int | None, partition: Any, augment: Augment | None) -> Data:
    if is_federated(partition) or (partition is None and is_federated(source)):
        partition = partitioner_of(source if partition is None else partition)
    custom = isinstance(source, Dataset) or is_hugging_face(source) or inspect.isroutine(source)
    fields: dict[str, Any] = {"source": CustomSource(make=source) if custom else source}
    if partition is not None:
        fields["partition"] = partition if isinstance(partition, Partition) else CustomPartition(make=partition)
    return Data(clients=clients, augment=augment, **fields)


def execute(
    experiment: Experiment,
    *,
    out: Path | None = None,
    data_dir: Path | None = None,
    modules: Path | None = None,
    watch: Watch | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Run an experiment. Ctrl-C stops it gracefully.

    Args:
        experiment: The experiment; everything is checked before the folder is created.
        out: Run folder; by default nothing is written.
        data_dir: Where data sets are stored.
        modules: Folder of the user's own modules, recorded for resuming.
        watch: Receives progress snapshots.
        callbacks: Receive the evaluations and the end of the run.
    """
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
    """Return a new run that is ready to start, with its folder; see `execute`.

    Args:
        experiment: The experiment.
        interrupted: Stops the run when set.
        out: Run folder.
        data_dir: Where data sets are stored.
        modules: Folder of the user's own modules.
        watch: Receives progress snapshots.
        callbacks: Receive the evaluations and the end of the run.
        runs: Number of runs that will be trained together.
    """
    with preparing(interrupted):
        assembly = experiment.assemble(data_dir, runs)
    folder = pathlib.Path(out) if out is not None else None
    new = Run(assembly, interrupted=interrupted, watch=watch, folder=folder, callbacks=callbacks)
    if out is not None:
        origin = Origin(*(str(pathlib.Path(p).resolve()) if p is not None else None for p in (data_dir, modules)))
        config = resolved(experiment, assembly)
        new.open(pathlib.Path(out), config, origin, setting(assembly) | objects(config, assembly))
    return new


def resume(
    path: Path,
    *,
    data_dir: Path | None = None,
    watch: Watch | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Resume an interrupted run. The result equals that of an uninterrupted one.

    Args:
        path: The run folder.
        data_dir: Where data sets are stored; by default where the run found them before.
        watch: Receives progress snapshots.
        callbacks: Receive the evaluations and the end of the run.
    """
    folder = pathlib.Path(path)
    return continue_(stored(folder), folder, data_dir, watch, callbacks)


def stored(folder: pathlib.Path) -> Experiment:
    """Return the experiment of a run folder."""
    from offbeat.runs.config import parse

    if not (folder / CONFIG).is_file():
        raise RunFolderError(f"{folder} is not a run folder: it has no {CONFIG}")
    modules = Origin.of(folder).modules
    if modules is not None and modules not in sys.path:
        sys.path.insert(0, modules)
    return parse(read_config(folder))


def continue_(
    experiment: Experiment,
    folder: pathlib.Path,
    data_dir: Path | None,
    watch: Watch | None,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Resume an experiment in its folder."""
    if (folder / "events.jsonl").is_file():
        raise RunFolderError(
            f"{folder} belongs to a deployment; resume it with the `offbeat deploy` command that started it"
        )
    if is_finished(folder):
        settle(folder)
        raise RunFolderError(f"{folder} is finished: {read_summary(folder)['rounds']} rounds")
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
    """Return an interrupted run that is ready to continue."""
    with preparing(interrupted):
        assembly = experiment.assemble(data_dir or Origin.of(folder).data_dir)
    if resolved(experiment, assembly) != read_text(folder / CONFIG):
        raise RunFolderError(
            f"{folder} contains another experiment, or was written by another version: compare its {CONFIG}"
        )
    old = Run(assembly, interrupted=interrupted, watch=watch, folder=folder, callbacks=callbacks)
    old.reopen(folder)
    return old


def resolved(experiment: Experiment, assembly: Assembly) -> str:
    """Return the complete TOML of an experiment, with the executor that was chosen."""
    from offbeat.runs.config import dump

    compiled = assembly.executor.compiled if experiment.device == "cuda" else experiment.compile
    return dump(dataclasses.replace(experiment, executor=assembly.executor_name, compile=compiled))
