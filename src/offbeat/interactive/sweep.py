"""Sweeps over Python objects and seeds."""

from __future__ import annotations

import functools
import html
import itertools
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from offbeat.errors import ConfigError, RunFolderError
from offbeat.interactive.comparison import ComparisonTable, compare
from offbeat.interactive.frames import pandas
from offbeat.interactive.result import Result
from offbeat.interactive.stored import StoredRun
from offbeat.options import Options
from offbeat.runs import api, config
from offbeat.runs.callbacks import Callback
from offbeat.runs.custom import PYTHON, name_of
from offbeat.runs.experiment import Experiment
from offbeat.runs.folder import CONFIG, is_finished, read_sweep
from offbeat.runs.sweep import Cell, Sweep

if TYPE_CHECKING:
    from offbeat.report.figure import InlineFigure

Path = str | os.PathLike[str]


@dataclass(frozen=True, repr=False, eq=False)
class SweepResult:
    """The runs of a sweep, from `ob.sweep` or from a folder with `ob.load`.

    Args:
        folder: The folder of the sweep.
        results: The results in order; those of a label are its seeds. Runs that diverged are left out.
        diverged: The label and seed of each run that diverged.
    """

    folder: pathlib.Path
    results: list[Result]
    diverged: Sequence[tuple[str, int]] = ()

    @classmethod
    def load(cls, folder: pathlib.Path, data_dir: Path | None = None) -> SweepResult:
        """Return the runs of a sweep that have begun."""
        runs = [run for run in read_sweep(folder) if (folder / run["folder"] / CONFIG).is_file()]
        return cls(
            folder,
            [Result(StoredRun(folder / run["folder"], data_dir=data_dir), name=run.get("label")) for run in runs],
        )

    @property
    def labels(self) -> list[str]:
        """The labels of the variants, in order."""
        return list(dict.fromkeys(result.label for result in self.results))

    def __getitem__(self, label: str) -> list[Result]:
        """Return the results of a variant, one per seed."""
        found = [result for result in self.results if result.label == label]
        if not found:
            raise KeyError(f"there is no variant {label!r}; there are {', '.join(self.labels)}")
        return found

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    @functools.cached_property
    def metrics(self) -> Any:
        """The evaluations of all runs as a data frame of pandas, with columns label and seed."""
        instead = "[result.evaluations for result in sweep]"
        frames = [result.metrics.assign(label=result.label, seed=result.seed) for result in self.results]
        return pandas(instead).concat(frames, ignore_index=True)

    @functools.cached_property
    def updates(self) -> Any:
        """The completed jobs of all runs as a data frame of pandas, with columns label and seed."""
        instead = "[result.log() for result in sweep]"
        frames = [result.updates.assign(label=result.label, seed=result.seed) for result in self.results]
        return pandas(instead).concat(frames, ignore_index=True)

    def compare(
        self,
        metric: str | None = None,
        at: Mapping[str, float] | None = None,
        baseline: str | None = None,
        confidence: float = 0.95,
    ) -> ComparisonTable:
        """Compare the variants; see `offbeat.compare`."""
        return compare(self, metric=metric, at=at, baseline=baseline, confidence=confidence)

    def plot(self, *, x: str = "virtual_seconds") -> InlineFigure:
        """Draw the main metric of every variant; a notebook shows the figure.

        Args:
            x: The horizontal axis: virtual_seconds, version or bytes_up.
        """
        from offbeat.interactive import figures

        return figures.curves([result.record for result in self.results], x)

    def report(self, file: str | pathlib.Path | None = None) -> pathlib.Path:
        """Write the HTML report of all runs and return its path.

        Args:
            file: The file; by default `report.html` in the folder of the sweep.
        """
        from offbeat.interactive import figures

        return figures.report([result.record for result in self.results], file, self.folder, self.folder.name)

    def __repr__(self) -> str:
        diverged = f", {len(self.diverged)} diverged" if self.diverged else ""
        return f"<SweepResult {self.folder}: {len(self.results)} runs{diverged}; {', '.join(self.labels)}>"

    def _repr_html_(self) -> str:
        evaluated = any(result.record.metrics for result in self.results)
        return f"<p>{html.escape(repr(self)[1:-1])}</p>{self.compare()._repr_html_() if evaluated else ''}"


def sweep(
    *,
    out: Path,
    seeds: Iterable[int] = (0,),
    progress: bool = False,
    data_dir: Path | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> SweepResult:
    """Run every combination of Python objects with every seed; runs with the same model and data are trained together.

    A list is an axis of the sweep: `algorithm=[ob.FedBuff(), ob.CA2FL()]`, `rounds=[50, 100]`. A dict gives each value
    a label: `client={"slow": ob.SGD(lr=0.01), "fast": ob.SGD(lr=0.1)}`. Everything else is the same for all runs. One
    array of indices per client is a partition, not an axis.

    The same call again returns what is finished, resumes what is not, and adds what is new.

    Args:
        out: Folder of the sweep.
        seeds: Seeds of each combination.
        progress: Show the progress, in a terminal or a notebook.
        data_dir: Where data sets are stored.
        callbacks: Receive the evaluations and the end of each run.
        settings: The arguments of `ob.run`.

    Returns:
        The results of all runs.

    Raises:
        ConfigError: A setting is not valid, or two combinations have the same label.
        RunFolderError: The folder contains other experiments, or cannot be written.
        KeyboardInterrupt: The sweep was interrupted; the same call resumes it.
    """
    plan, folder = Sweep(list(cells_of(settings, _seeds(settings, seeds)))), pathlib.Path(out)
    return result_of(plan, folder, execute(plan, folder, progress, data_dir, callbacks), data_dir)


def execute(
    plan: Sweep,
    folder: pathlib.Path,
    progress: bool = False,
    data_dir: Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, dict[str, Any]]:
    """Run a sweep and return the summaries by run folder: empty for a run that diverged.

    Raises:
        RunFolderError: The folder is that of a single run.
        KeyboardInterrupt: The sweep was interrupted; the same call resumes it.
    """
    from rich.console import Console

    from offbeat.runs.progress import SweepDisplay

    if (folder / CONFIG).is_file():
        raise RunFolderError(f"{folder} is the folder of a single run; give the sweep another `out`")
    with SweepDisplay(Console(), len(plan.cells), quiet=not progress) as display:
        ended = display.run(plan, folder, _path(data_dir), callbacks=callbacks)
    if len(ended) < len(plan.cells):
        raise KeyboardInterrupt(f"interrupted after {len(ended)} of {len(plan.cells)} runs; the same call resumes them")
    return ended


def result_of(plan: Sweep, folder: pathlib.Path, ended: Mapping[str, Any], data_dir: Path | None = None) -> SweepResult:
    """Return the results of a sweep that ended."""
    results = [
        Result(StoredRun(folder / cell.folder, cell.experiment(), data_dir), name=cell.label)
        for cell in plan.cells
        if is_finished(folder / cell.folder)
    ]
    return SweepResult(folder, results, [(cell.label, cell.seed) for cell in plan.cells if not ended[cell.folder]])


def _path(place: Path | None) -> pathlib.Path | None:
    return None if place is None else pathlib.Path(place)


def _seeds(settings: Mapping[str, Any], seeds: Iterable[int]) -> list[int]:
    if "seed" in settings:
        raise ConfigError("seeds are not an axis: use seeds=range(5)", key="seed")
    listed = list(dict.fromkeys(seeds))
    if not listed:
        raise ConfigError("give at least one seed", key="seeds")
    return listed


def cells_of(settings: Mapping[str, Any], seeds: Sequence[int]) -> Iterator[Cell]:
    """Yield one cell per combination and seed."""
    axes = {name: value for name, value in settings.items() if _is_axis(name, value)}
    for name, values in axes.items():
        if not values:
            raise ConfigError("an axis of a sweep needs at least one value", key=name)
    labeled = [[(name, *pair) for pair in _labeled(name, values)] for name, values in axes.items()]
    for point in itertools.product(*labeled):
        chosen = {**settings, **{name: value for name, _, value in point}}
        label = " ".join(text for _, text, _ in point) or "run"
        for seed in seeds:
            yield Cell(label, seed, given=_experiment(chosen, seed))


def _experiment(settings: Mapping[str, Any], seed: int) -> Experiment:
    return api.experiment_of(**settings, seed=seed)


def _is_axis(name: str, value: Any) -> bool:
    """Return whether an argument is an axis: a list or a plain dict, except for one array of indices per client."""
    if type(value) is dict:
        return name != "budget"
    if not isinstance(value, list):
        return False
    return name != "partition" or not all(isinstance(each, list | tuple | range | np.ndarray) for each in value)


def _labeled(name: str, values: Any) -> list[tuple[str, Any]]:
    """Return the values of an axis with their labels: names, and the options in which values of one name differ."""
    if isinstance(values, dict):
        return [(str(label), value) for label, value in values.items()]
    tables = [_table(value) for value in values]
    names = [table.get("name") for table in tables]
    labels = []
    for value, table in zip(values, tables, strict=True):
        if not table:
            labels.append(f"{name}={value}")
            continue
        same = [other for other in tables if other.get("name") == table.get("name")]
        options = [f"{key}={shown}" for key, shown in table.items() if key != "name" and _varies(key, same)]
        first = [str(table["name"])] if table.get("name") and (len(set(names)) > 1 or not options) else []
        labels.append(" ".join([*first, *options]) or name)
    return [(label, value) for label, value in zip(labels, values, strict=True)]


def _varies(key: str, tables: Sequence[Mapping[str, Any]]) -> bool:
    return len({repr(table.get(key)) for table in tables}) > 1


def _table(value: Any) -> dict[str, Any]:
    """Return the name and the options of an object as one flat table; empty for a plain value such as a number."""
    if isinstance(value, bool | int | float | str) or value is None:
        return {}
    if isinstance(value, Options):
        return {key.removesuffix(".name"): text for key, text in _flat(config.describe(value)).items()}
    return {"name": name_of(value).removeprefix(PYTHON).rpartition(":")[2]}


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a table and of those in it, by key; two keys of one name keep their path."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            for inner, each in _flat(value).items():
                short = key if inner == "name" else inner
                found[short if short not in found and short not in table else f"{key}.{inner}"] = each
        else:
            found[key] = value
    return found
