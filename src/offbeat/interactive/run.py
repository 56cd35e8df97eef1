"""Run an experiment from Python, resume one, and load a stored one."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from offbeat.algorithms import Algorithm
from offbeat.data import Augment
from offbeat.errors import RunFolderError
from offbeat.interactive.result import Result
from offbeat.interactive.stored import StoredRun
from offbeat.models import Model
from offbeat.runs import api
from offbeat.runs.budget import Budget
from offbeat.runs.callbacks import Callback
from offbeat.runs.experiment import Evaluation, Experiment
from offbeat.runs.folder import CONFIG, SWEEP, is_finished, is_resumable, is_run, name_of
from offbeat.runs.records import settle
from offbeat.runs.result import Watch, algorithm_name
from offbeat.scheduling import Scheduler
from offbeat.tasks import Task

if TYPE_CHECKING:
    from offbeat.interactive.sweep import SweepResult

Path = str | os.PathLike[str]


def run(
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
    out: Path | None = None,
    resume: bool = True,
    overwrite: bool = False,
    progress: bool = False,
    data_dir: Path | None = None,
    watch: Watch | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Result:
    """Run one experiment, or return its stored result.

    With `out`, the same call again returns the stored result of a finished run and resumes an unfinished one.

    Args:
        data: A `Dataset` (see `from_arrays`, `from_datasets` and `from_hugging_face`), a data set of Hugging Face or
            Flower Datasets, a function that returns one, one of offbeat's sources, or a complete `Data`.
        model: A module, a function or class that builds one, or one of offbeat's models.
        algorithm: The server algorithm.
        task: What is learned: a `Task` with a loss and metrics, a function (outputs, labels) → losses per example, or
            the name of a built-in task, such as "regression"; classification when left out.
        partition: One array of indices per client, one of offbeat's partitions together with `clients`, or a
            partitioner of Flower Datasets; a `FederatedDataset` has its own.
        clients: Number of clients.
        augment: Augmentation of the training images, such as `CropFlip()`.
        scheduler: When the server steps; by default the algorithm's first scheduler.
        evaluation: An `Evaluation`, or the number of versions between two evaluations.
        budget: What the run may use, `Budget(client_steps=10_000)` or a dict with the same keys.
        out: Run folder; by default nothing is written.
        resume: Whether to resume the run in `out` if it is not finished; otherwise that is an error.
        overwrite: Delete the run in `out` first, whatever it is.
        progress: Show the progress, in a terminal or a notebook.
        data_dir: Where data sets are stored.
        watch: Receives progress snapshots.
        callbacks: Receive the evaluations and the end of the run, such as `TensorBoard()`; none are called for a stored
            result.
        settings: Further fields of `Experiment`: client, personalization, environment, compression, validation, rounds,
            virtual_seconds, seed, device, executor, compile, precision.

    Returns:
        The final model, the summary and the evaluations.

    Raises:
        ConfigError: A setting is not valid.
        DataError: The data cannot be read.
        DivergenceError: Training diverged.
        RunFolderError: The run folder contains another experiment, or cannot be written or resumed.
        KeyboardInterrupt: The run was interrupted; a run with a folder can be resumed.
    """
    experiment = api.experiment_of(
        data=data, model=model, algorithm=algorithm, task=task, partition=partition, clients=clients, augment=augment,
        scheduler=scheduler, evaluation=evaluation, budget=budget, **settings,
    )  # fmt: skip
    folder = pathlib.Path(out) if out is not None else None
    started = folder is not None and is_resumable(folder)
    if folder is not None and started:
        from offbeat.runs import existing

        if overwrite:
            existing.remove(folder)
            started = False
        else:
            _check(experiment, folder, data_dir)
            if is_finished(folder):
                settle(folder)
                return Result(StoredRun(folder, experiment, data_dir))
            if not resume:
                raise RunFolderError(f"{folder} exists and is not empty; continue it with resume=True")
            experiment = existing.adopted(experiment, folder)
    label = name_of(folder) if folder is not None else algorithm_name(experiment.algorithm)
    with _shown(progress, label, watch) as watch:
        if folder is not None and started:
            ended = api.continue_(experiment, folder, data_dir, watch, callbacks)
        else:
            ended = api.execute(experiment, out=folder, data_dir=data_dir, watch=watch, callbacks=callbacks)
    if ended.interrupted:
        raise KeyboardInterrupt(f"interrupted at round {ended.summary['rounds']}")
    return Result(ended, experiment)


def execute(
    experiment: Experiment,
    *,
    out: Path | None = None,
    data_dir: Path | None = None,
    modules: Path | None = None,
    watch: Watch | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
) -> Result:
    """Run an experiment. Ctrl-C stops it gracefully.

    Args:
        experiment: The experiment; everything is checked before the folder is created.
        out: Run folder, which must not exist or be empty; by default nothing is written.
        data_dir: Where data sets are stored.
        modules: Folder of the user's own modules, recorded for resuming.
        watch: Receives progress snapshots.
        callbacks: Receive the evaluations and the end of the run.
        progress: Show the progress, in a terminal or a notebook.
    """
    label = pathlib.Path(out).name if out is not None else algorithm_name(experiment.algorithm)
    with _shown(progress, label, watch) as watch:
        return Result(
            api.execute(
                experiment, out=out, data_dir=data_dir, modules=modules, watch=watch, callbacks=callbacks
            ),
            experiment,
        )  # fmt: skip


def resume(
    path: Path,
    *,
    data_dir: Path | None = None,
    watch: Watch | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
) -> Result:
    """Resume an interrupted run. The result equals that of an uninterrupted one.

    Args:
        path: The run folder.
        data_dir: Where data sets are stored; by default where the run found them before.
        watch: Receives progress snapshots.
        callbacks: Receive the evaluations and the end of the run.
        progress: Show the progress, in a terminal or a notebook.
    """
    folder = pathlib.Path(path)
    experiment = api.stored(folder)
    with _shown(progress, folder.name, watch) as watch:
        return Result(api.continue_(experiment, folder, data_dir, watch, callbacks), experiment)


def load(folder: Path, *, data_dir: Path | None = None) -> Result | SweepResult:
    """Return the result of a run or of a sweep from its folder; nothing is read before it is used.

    Args:
        folder: The folder of a run, finished or not, or of a sweep.
        data_dir: Where data sets are stored, which the module of a run may need; by default where the run found them.

    Raises:
        RunFolderError: The folder is not one of a run or of a sweep.
    """
    place = pathlib.Path(folder)
    if (place / SWEEP).is_file():
        from offbeat.interactive.sweep import SweepResult

        return SweepResult.load(place, data_dir)
    if not is_run(place) or not (place / CONFIG).is_file():
        raise RunFolderError(f"{place} is not the folder of a run or of a sweep: it has no {CONFIG} and no {SWEEP}")
    return Result(StoredRun(place, data_dir=data_dir))


def _check(experiment: Experiment, folder: pathlib.Path, data_dir: Path | None) -> None:
    """Raise an error if a folder contains another experiment."""
    from offbeat.runs.existing import check_same, differences, object_differences

    found = differences(experiment, folder) or object_differences(experiment, folder, data_dir)
    check_same(found, folder, "give another out, or replace what is there with overwrite=True")


@contextlib.contextmanager
def _shown(progress: bool, label: str, watch: Watch | None) -> Iterator[Watch | None]:
    """Yield a watch that shows the progress of a run, if that is asked for, and then calls the given one."""
    if not progress:
        yield watch
        return
    from rich.console import Console

    from offbeat.runs.progress import Display

    with Display(Console(), label) as display:

        def both(snapshot: Any) -> None:
            display.watch(snapshot)
            if watch is not None:
                watch(snapshot)

        yield both
