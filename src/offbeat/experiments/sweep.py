"""Many runs: variants × grid × seeds, each in its own folder under one."""

from __future__ import annotations

import copy
import itertools
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from offbeat.errors import ConfigError, DivergenceError, RunFolderError
from offbeat.experiments import api, config
from offbeat.experiments.config import Table
from offbeat.experiments.experiment import Experiment
from offbeat.experiments.folder import read_json, write_json
from offbeat.experiments.run import Watch


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    label: str
    seed: int
    table: Table

    @property
    def folder(self) -> str:
        plain = re.sub(r"[^\w.=,+-]+", "-", self.label).strip("-.") or "run"
        return f"{plain}/seed-{self.seed}"


@dataclass(frozen=True)
class Sweep:
    """The runs in their order; every cell was parsed once, so a mistake in any of them shows before the first."""

    cells: list[Cell]

    @classmethod
    def plan(cls, table: Table, grid: Sequence[str], seeds: Sequence[int]) -> Sweep:
        base = dict(table)
        variants = base.pop("variants", [{}])
        if not isinstance(variants, list) or not all(isinstance(v, dict) for v in variants) or not variants:
            raise ConfigError("expected [[variants]], each with a label and the keys that it changes", key="variants")
        seeds = list(dict.fromkeys(seeds)) or [base.get("seed", 0)]
        cells = []
        for variant, point in itertools.product(variants, _points(grid)):
            changed = merge(base, {name: value for name, value in variant.items() if name != "label"})
            for dotted, value in point:
                if dotted == "seed":
                    raise ConfigError("seeds are not an axis of the grid: use --seeds 0,1,2", key="--grid")
                config.put(changed, dotted, value)
            label = " ".join([*([str(variant["label"])] if "label" in variant else []), *map(_short, point)]) or "run"
            cells += [Cell(label, seed, changed | {"seed": seed}) for seed in seeds]
        folders = [cell.folder for cell in cells]
        if len(set(folders)) < len(folders):
            twice = next(folder for folder in folders if folders.count(folder) > 1)
            raise ConfigError(f"two runs would share the folder {twice!r}: give the variants different labels")
        for cell in cells:
            config.parse(cell.table)
        return cls(cells)

    def check(self, data_dir: api.Path | None) -> None:
        """Load and build everything once, so that what does not fit together shows before the first run."""
        for cell in self.cells:
            config.parse(cell.table).assemble(data_dir)

    def run(
        self,
        out: pathlib.Path,
        data_dir: api.Path | None,
        watch: Callable[[Cell], Watch | None],
        modules: api.Path | None = None,
    ) -> Iterator[tuple[Cell, dict[str, Any] | None]]:
        """Run what is not finished, go on with what is interrupted.

        Yields each run's summary: empty if it diverged, None if it was interrupted, after which nothing more is run.
        """
        runs = [{"label": c.label, "seed": c.seed, "folder": c.folder} for c in self.cells]
        try:
            out.mkdir(parents=True, exist_ok=True)
            write_json(out / "sweep.json", {"runs": runs})
        except OSError as error:
            raise RunFolderError(f"cannot write into {out}: {error.strerror}") from error
        for cell in self.cells:
            try:
                summary = _run(out / cell.folder, config.parse(cell.table), data_dir, watch(cell), modules)
            except DivergenceError:
                summary = {}
            yield cell, summary
            if summary is None:
                return


def _run(
    folder: pathlib.Path,
    experiment: Experiment,
    data_dir: api.Path | None,
    watch: Watch | None,
    modules: api.Path | None,
) -> dict[str, Any] | None:
    known = folder / "config.toml"
    if known.is_file():
        if not _same(config.parse(config.read(known)), experiment):
            raise RunFolderError(f"{folder} holds another experiment; give the sweep another --out")
        if (folder / "summary.json").is_file():
            return read_json(folder / "summary.json")
        result = api.resume(folder, data_dir=data_dir, watch=watch)
    else:
        result = api.execute(experiment, out=folder, data_dir=data_dir, modules=modules, watch=watch)
    return None if result.interrupted else result.summary


def _same(one: Experiment, other: Experiment) -> bool:
    """Equal but for the executor, which the folder has resolved."""
    first, second = config.describe(one), config.describe(other)
    if second["executor"] == "auto":
        second["executor"] = first["executor"]
    return config.dumps(first) == config.dumps(second)


def merge(base: Table, changes: Table) -> Table:
    """A copy of base with the changes laid over it, table by table."""
    merged = copy.deepcopy(base)
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(merged.get(name), dict):
            merged[name] = merge(merged[name], value)
        else:
            merged[name] = copy.deepcopy(value)
    return merged


def _points(grid: Sequence[str]) -> Iterator[tuple[tuple[str, Any], ...]]:
    """All combinations of `key=a,b,c` axes."""
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
            raise ConfigError(f"{axis!r}: the values cannot be told apart", key="--grid")
        axes.append([(dotted.strip(), config.value_of(part.strip())) for part in parts])
    return itertools.product(*axes)


def _short(assignment: tuple[str, Any]) -> str:
    dotted, value = assignment
    last = dotted.rpartition(".")[2]
    return str(value) if last == "name" else f"{last}={value}"
