"""Sweeps: variants × axes × grid × seeds, each run in its own folder below that of the sweep."""

from __future__ import annotations

import contextlib
import copy
import itertools
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from offbeat.errors import ConfigError, DivergenceError, RunFolderError
from offbeat.files import write_json
from offbeat.runs import api, config
from offbeat.runs.callbacks import Callback
from offbeat.runs.config import Table
from offbeat.runs.drive import together
from offbeat.runs.existing import adopted, check_same, differences, object_differences
from offbeat.runs.experiment import Experiment
from offbeat.runs.folder import SWEEP, is_finished, is_resumable, is_run, read_summary, read_sweep
from offbeat.runs.interrupt import interruptible
from offbeat.runs.records import settle
from offbeat.runs.result import RunResult, Watch

MAX_TOGETHER = 16  # runs that are trained at once


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    label: str
    seed: int
    table: Table = field(default_factory=dict)
    given: Experiment | None = None
    """The experiment, if it was built from Python objects and not from the table."""

    def experiment(self) -> Experiment:
        """Return the experiment; a run copies the objects in it that have state."""
        return config.parse(self.table) if self.given is None else self.given

    @property
    def folder(self) -> str:
        """The run folder, relative to the folder of the sweep."""
        plain = re.sub(r"[^\w.=,+-]+", "-", self.label).strip("-.") or "run"
        return f"{plain}/seed-{self.seed}"


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep in order."""

    cells: list[Cell]

    @classmethod
    def plan(cls, table: Table, grid: Sequence[str], seeds: Sequence[int]) -> Sweep:
        """Expand a table into the runs of a sweep.

        Args:
            table: The experiment, with optional `variants`, `axes` and `seeds`.
            grid: Further axes, such as `algorithm.name=fedbuff,ca2fl`.
            seeds: Seeds of each point; by default those of the table.

        Raises:
            ConfigError: Any of the runs is not valid.
        """
        base = dict(table)
        axes = [_variants(base.pop("variants", [{}]), "variants")]
        axes[:0] = [_variants(axis, f"axes.{name}") for name, axis in base.pop("axes", {}).items()]
        listed = base.pop("seeds", [])
        seeds = list(dict.fromkeys(seeds or listed or [base.get("seed", 0)]))
        cells = []
        for variants, point in itertools.product(itertools.product(*axes), _points(grid)):
            changed = base
            for variant in variants:
                changed = merge(changed, {name: value for name, value in variant.items() if name != "label"})
            for dotted, value in point:
                if dotted == "seed":
                    raise ConfigError("seeds are not an axis of the grid: use --seeds 0,1,2", key="--grid")
                config.put(changed, dotted, value)
            labels = [str(variant["label"]) for variant in variants if "label" in variant]
            label = " ".join([*labels, *map(_short, point)]) or "run"
            cells += [Cell(label, seed, changed | {"seed": seed}) for seed in seeds]
        plan = cls(cells)
        for cell in cells:
            config.parse(cell.table)
        return plan

    def __post_init__(self) -> None:
        folders = [cell.folder for cell in self.cells]
        if len(set(folders)) < len(folders):
            twice = next(folder for folder in folders if folders.count(folder) > 1)
            raise ConfigError(f"two runs would share the folder {twice!r}: give the variants different labels")

    def run(
        self,
        out: pathlib.Path,
        data_dir: api.Path | None,
        watch: Callable[[Sequence[Cell]], Sequence[Watch | None]],
        modules: api.Path | None = None,
        callbacks: Sequence[Callback] = (),
        on_checked: Callable[[int], None] = lambda number: None,
    ) -> Iterator[tuple[Cell, dict[str, Any] | None]]:
        """Start the runs that are new and resume those that were interrupted.

        All runs are assembled once before anything is written, so that an error shows early. Runs with the same model
        and data are trained together.

        Args:
            out: Folder of the sweep.
            data_dir: Where data sets are stored.
            watch: Returns a progress watch for each of the given cells, which are about to start.
            modules: Folder of the user's own modules.
            callbacks: Receive the evaluations and the end of each run.
            on_checked: Receives the number of runs that have been assembled so far.

        Yields:
            Each cell with its summary when the run ends: empty if it diverged, None if it was interrupted. No run is
            started after an interruption.
        """
        ended = {c.folder: _finished(out / c.folder, c.experiment(), data_dir) for c in self.cells}
        pools = _pools([cell for cell in self.cells if ended[cell.folder] is None], data_dir, on_checked)
        try:
            out.mkdir(parents=True, exist_ok=True)
            write_json(out / SWEEP, {"runs": [*self._others(out), *map(_listed, self.cells)]})
        except OSError as error:
            raise RunFolderError(f"cannot write to {out}: {error.strerror}") from error
        yield from ((cell, ended[cell.folder]) for cell in self.cells if ended[cell.folder] is not None)
        for cells in pools:
            stopped = False
            for cell, summary in zip(cells, _run(cells, out, data_dir, watch(cells), modules, callbacks), strict=True):
                yield cell, summary
                stopped |= summary is None
            if stopped:
                return

    def _others(self, out: pathlib.Path) -> list[dict[str, Any]]:
        """Return the runs of a sweep's folder that are not in this plan, such as other seeds."""
        own = {cell.folder for cell in self.cells}
        listed = read_sweep(out) if (out / SWEEP).is_file() else []
        return [run for run in listed if run["folder"] not in own and is_run(out / run["folder"])]


def _listed(cell: Cell) -> dict[str, Any]:
    return {"label": cell.label, "seed": cell.seed, "folder": cell.folder}


def _finished(folder: pathlib.Path, experiment: Experiment, data_dir: api.Path | None) -> dict[str, Any] | None:
    """Return the summary of a run that is already finished, or None."""
    if is_resumable(folder):
        found = differences(experiment, folder) or object_differences(experiment, folder, data_dir)
        check_same(found, folder, "give the sweep another folder")
    if not is_finished(folder):
        return None
    settle(folder)
    return read_summary(folder)


def _pools(
    cells: Sequence[Cell], data_dir: api.Path | None, on_checked: Callable[[int], None] = lambda number: None
) -> list[list[Cell]]:
    """Group cells that can be trained in one stack, at most `MAX_TOGETHER` per group."""
    pools: dict[object, list[Cell]] = {}
    for number, cell in enumerate(cells, start=1):
        kind = cell.experiment().assemble(data_dir).pool
        pools.setdefault(number if kind is None else kind, []).append(cell)
        on_checked(number)
    return [
        pool[first : first + MAX_TOGETHER] for pool in pools.values() for first in range(0, len(pool), MAX_TOGETHER)
    ]


def _run(
    cells: Sequence[Cell],
    out: pathlib.Path,
    data_dir: api.Path | None,
    watches: Sequence[Watch | None],
    modules: api.Path | None,
    callbacks: Sequence[Callback],
) -> list[dict[str, Any] | None]:
    """Run the cells of a pool."""
    with interruptible() as interrupted, contextlib.ExitStack() as begun:
        runs = []
        for cell, watch in zip(cells, watches, strict=True):
            folder, experiment = out / cell.folder, cell.experiment()
            if is_resumable(folder):
                before = api.stored(folder) if cell.given is None else adopted(experiment, folder)
                run = api.reopen(before, interrupted, folder, data_dir, watch, callbacks)
            else:
                run = api.begin(
                    experiment, interrupted, out=folder, data_dir=data_dir, modules=modules, watch=watch,
                    callbacks=callbacks, runs=len(cells),
                )  # fmt: skip
            runs.append(run)
            begun.callback(run.abandon)
        return [_summary(outcome) for outcome in together(runs)]


def _summary(outcome: RunResult | DivergenceError) -> dict[str, Any] | None:
    if isinstance(outcome, DivergenceError):
        return {}
    return None if outcome.interrupted else outcome.summary


def merge(base: Table, changes: Table) -> Table:
    """Return a copy of a table with changes applied, recursively."""
    merged = copy.deepcopy(base)
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(merged.get(name), dict):
            merged[name] = merge(merged[name], value)
        else:
            merged[name] = copy.deepcopy(value)
    return merged


def _variants(listed: object, key: str) -> list[Table]:
    if not isinstance(listed, list) or not all(isinstance(v, dict) for v in listed) or not listed:
        raise ConfigError(f"expected [[{key}]] tables, each with a label and the keys that it changes", key=key)
    return listed


def _points(grid: Sequence[str]) -> Iterator[tuple[tuple[str, Any], ...]]:
    """Return all combinations of axes such as `key=a,b,c`."""
    axes = []
    for axis in grid:
        dotted, equals, values = axis.partition("=")
        if not equals or not dotted or not values:
            raise ConfigError(
                f"{axis!r}: expected KEY=VALUE,VALUE…, such as algorithm.name=fedbuff,ca2fl", key="--grid"
            )
        # A comma inside brackets belongs to the value: model.hidden=[64],[64,32].
        parts = re.findall(r"(?:[^,\[\]{}]|\[[^\]]*\]|\{[^}]*\})+", values)
        if not parts or ",".join(parts) != values:
            raise ConfigError(f"{axis!r}: cannot split the values at commas; check the brackets", key="--grid")
        axes.append([(dotted.strip(), config.value_of(part.strip())) for part in parts])
    return itertools.product(*axes)


def _short(assignment: tuple[str, Any]) -> str:
    dotted, value = assignment
    last = dotted.rpartition(".")[2]
    return str(value) if last == "name" else f"{last}={value}"
