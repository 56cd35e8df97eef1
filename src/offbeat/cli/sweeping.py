"""The command `sweep`, and what it shares with `reproduce`."""

from __future__ import annotations

import pathlib
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from offbeat.cli.common import (
    INTERRUPTED,
    file_argument,
    modules_of,
    new_folder,
    read_table,
    seeds_of,
    settings_options,
    track_option,
)
from offbeat.cli.reporting import remark

if TYPE_CHECKING:
    from offbeat.runs.callbacks import Callback
    from offbeat.runs.sweep import Sweep


@click.command()
@file_argument
@settings_options
@click.option("--grid", multiple=True, metavar="KEY=V1,V2…", help="Add an axis to the grid; repeatable.")
@click.option("--seeds", default="", metavar="0-9", help="Run each point with these seeds: 0,1,2 or 0-9.")
@click.option(
    "--out",
    type=click.Path(path_type=pathlib.Path),
    help="Folder of the sweep (default: a new one under runs/). An unfinished sweep is resumed.",
)
@track_option
@click.option("--quiet", is_flag=True, help="Print only the final table.")
def sweep(
    file: str,
    assignments: Sequence[str],
    device: str | None,
    executor: str | None,
    data_dir: pathlib.Path | None,
    grid: Sequence[str],
    seeds: str,
    out: pathlib.Path | None,
    track: Sequence[str],
    quiet: bool,
) -> None:
    """Run all combinations of variants, axes, grid and seeds, and compare them.

    FILE is a TOML file or preset:NAME. Its [[variants]] and [[axes.NAME]] are combined with --grid, and --seeds
    replaces its seeds.
    """
    from offbeat.report import notes, plots, read, tables
    from offbeat.report.figures import plain
    from offbeat.runs.sweep import Sweep
    from offbeat.runs.trackers import trackers

    table = read_table(file, assignments, device=device, executor=executor)
    plan, callbacks = Sweep.plan(table, grid, seeds_of(seeds)), trackers(track)
    folder = out or new_folder(file, "sweep")
    console = Console()
    ended = run_all(plan, folder, data_dir, console, quiet, modules_of(file), callbacks)
    summaries: dict[str, list[dict[str, Any]]] = {}
    folders: dict[str, list[pathlib.Path]] = {}
    for cell in plan.cells:
        summaries.setdefault(cell.label, []).append(ended[cell.folder])
        if ended[cell.folder]:
            folders.setdefault(cell.label, []).append(folder / cell.folder)
    console.print(tables.fitted(tables.results(summaries), console))
    if folders:
        first = next(s for group in summaries.values() for s in group if s)
        target = first["target"] if first.get("target_metric") == first["metric"] else None
        figure = folder / f"{plain(first['metric'])}.png"
        plots.curves(folders, target=target).savefig(figure)
        click.echo(f"runs    {folder}\nfigure  {figure}")
        remark(notes.differences([read.read(place) for group in folders.values() for place in group]))


def run_all(
    plan: Sweep,
    folder: pathlib.Path,
    data_dir: pathlib.Path | None,
    console: Console,
    quiet: bool,
    modules: pathlib.Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, dict[str, Any]]:
    """Run a sweep and show its progress; exit with a hint if it is interrupted.

    Args:
        plan: The runs.
        folder: Folder of the sweep.
        data_dir: Where data sets are stored.
        console: Where to show the progress.
        quiet: Show no progress.
        modules: Folder of the user's own modules.
        callbacks: Receive the evaluations and the end of each run.

    Returns:
        The summaries by run folder; empty for a run that diverged.
    """
    from offbeat.runs.progress import SweepDisplay

    with SweepDisplay(console, len(plan.cells), quiet) as display:
        ended = display.run(plan, folder, data_dir, modules, callbacks)
    if len(ended) < len(plan.cells):
        console.print(
            f"interrupted after {len(ended)} of {len(plan.cells)} runs; "
            f"to resume, repeat the command with --out {shlex.quote(str(folder))}"
        )
        sys.exit(INTERRUPTED)
    return ended
