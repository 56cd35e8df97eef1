"""The command `reproduce`."""

from __future__ import annotations

import copy
import pathlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from rich.console import Console

from offbeat.cli.common import seeds_of, settings_options
from offbeat.cli.sweeping import run_all
from offbeat.errors import ConfigError, OffbeatError, nearest

if TYPE_CHECKING:
    from rich.table import Table

    from offbeat.reproductions.results import Results
    from offbeat.runs.sweep import Cell


@click.command()
@click.argument("name", required=False)
@settings_options
@click.option(
    "--seeds",
    default="",
    metavar="0-9",
    help="Run each cell with these seeds, such as 0,1,2 or 0-9 (default: the file's).",
)
@click.option("--part", "parts", multiple=True, metavar="CELL",
              help="Run only this cell, row or column, such as 'CA²FL Dir(0.1)' or 'CA²FL'; repeatable.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=1), help="Make this many rounds instead of the paper's.")
@click.option(
    "--out",
    type=click.Path(path_type=pathlib.Path),
    help="Folder of the runs (default: runs/NAME). The same command again resumes it.",
)
@click.option("--show", is_flag=True, help="Run nothing: compare the runs in --out, or those stored in the repository.")
@click.option("--quiet", is_flag=True, help="Print only the final table.")
def reproduce(
    name: str | None,
    assignments: Sequence[str],
    device: str | None,
    executor: str | None,
    data_dir: pathlib.Path | None,
    seeds: str,
    parts: Sequence[str],
    rounds: int | None,
    out: pathlib.Path | None,
    show: bool,
    quiet: bool,
) -> None:
    """Reproduce a table or figure of a paper, and compare the results with the paper's.

    Without NAME, list all reproductions and what is stored of them. Parts and seeds of one reproduction can be run one
    after the other into the same folder; the comparison covers everything there.
    """
    from offbeat.reproductions import files, results
    from offbeat.reproductions.collect import collect
    from offbeat.runs.sweep import Sweep

    console = Console()
    if name is None:
        console.print(_listing())
        return
    files.paper(name)  # the name is checked before anything else
    if show:
        found = collect(name, [out]) if out else results.read(files.stored(name))
        if found is None:
            raise OffbeatError(f"no runs of {name} are stored; run it with: offbeat reproduce {name}")
        _compare(console, name, found)
        return
    changes = {"device": device, "executor": executor, "rounds": rounds}
    words = [*assignments, *(f"{key}={value}" for key, value in changes.items() if value is not None)]
    plan = Sweep.plan(files.table(name), [], seeds_of(seeds))
    plan = Sweep([_changed(cell, words) for cell in _selected(plan.cells, parts)])
    folder = out or pathlib.Path("runs") / name
    run_all(plan, folder, data_dir, console, quiet)
    _compare(console, name, collect(name, [folder]))
    click.echo(f"runs  {folder}")


def _selected(cells: Sequence[Cell], parts: Sequence[str]) -> list[Cell]:
    """Return the cells that any of the parts names: the whole label, or some of its words in a row."""
    labels = list(dict.fromkeys(cell.label for cell in cells))
    wanted: set[str] = set()
    for part in parts:
        named = [part] if part in labels else [label for label in labels if f" {part} " in f" {label} "]
        if not named:
            raise ConfigError(f"no cell is or contains {part!r}; {nearest(part, labels)}", key="--part")
        wanted.update(named)
    return [cell for cell in cells if not parts or cell.label in wanted]


def _changed(cell: Cell, assignments: Sequence[str]) -> Cell:
    """Return a cell with the values of --set, which take precedence over those of its variant."""
    from offbeat.runs import config

    table = copy.deepcopy(cell.table)
    for assignment in assignments:
        config.override(table, assignment)
    config.parse(table)
    return replace(cell, table=table)


def _compare(console: Console, name: str, found: Results) -> None:
    """Print the comparison with the paper."""
    from offbeat.report.tables import fitted
    from offbeat.reproductions import files, results
    from offbeat.reproductions.comparison import comparison

    paper = files.paper(name)
    short = results.shortened(name, found)
    console.print(
        f"{paper['title']}" + (f" (part: {', '.join(short)})" if short else ""), markup=False, highlight=False
    )
    console.print(fitted(comparison(paper, found), console))


def _listing() -> Table:
    """Return the reproductions and what is stored of them."""
    from rich import box
    from rich.table import Table

    from offbeat.reproductions import files, results

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("reproduces")
    table.add_column("stored")
    for name, paper in files.papers().items():
        found = results.read(files.stored(name))
        words = "no runs"
        if found is not None:
            words = f"{len(found.runs)} runs, {found.seeds} seed{'s' if found.seeds > 1 else ''}"
            words = "; ".join([words, *results.shortened(name, found)])
        table.add_row(name, paper["title"], words)
    return table
