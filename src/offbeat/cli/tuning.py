"""The command `tune`."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import click
from rich.console import Console

from offbeat.cli.common import (
    file_argument,
    modules_of,
    new_folder,
    read_table,
    seeds_of,
    settings_options,
    track_option,
)
from offbeat.cli.reporting import remark
from offbeat.cli.sweeping import run_all


@click.command()
@file_argument
@settings_options
@click.option("--method", type=click.Choice(["random", "grid", "asha", "optuna"]), help="How trials are chosen.")
@click.option("--trials", type=int, help="Trials of each rule.")
@click.option(
    "--compare", "seeds", default="", is_flag=False, flag_value="fresh", metavar="[1-5]",
    help="Then run the best of each rule with these seeds (without a value: those of the file, or five new ones).",
)  # fmt: skip
@click.option(
    "--out",
    type=click.Path(path_type=pathlib.Path),
    help="Folder of the search (default: a new one under runs/). An unfinished search is resumed.",
)
@track_option
@click.option("--quiet", is_flag=True, help="Print only the final tables.")
def tune(
    file: str,
    assignments: Sequence[str],
    device: str | None,
    executor: str | None,
    data_dir: pathlib.Path | None,
    method: str | None,
    trials: int | None,
    seeds: str,
    out: pathlib.Path | None,
    track: Sequence[str],
    quiet: bool,
) -> None:
    """Search for the hyperparameters of an experiment.

    FILE is a TOML file or preset:NAME with a table [tune]. Every combination of its [[variants]] and [[axes.NAME]] is a
    rule, and all rules get the same number of trials.
    """
    from offbeat.report import notes, read, tables
    from offbeat.runs.trackers import trackers
    from offbeat.tuning import outcome, table

    search, listed = table.parse(
        read_table(file, assignments, device=device, executor=executor), method=method, trials=trials
    )
    chosen = (listed if seeds == "fresh" else seeds_of(seeds)) if seeds else listed
    search.check_fresh(chosen)
    folder, console, callbacks = out or new_folder(file, "tune"), Console(), trackers(track)
    found = search.run(lambda plan: run_all(plan, folder, data_dir, console, quiet, modules_of(file), callbacks))
    files = outcome.write(search, found, folder)
    console.print(tables.fitted(outcome.table(search, found), console))
    for path in files:
        click.echo(f"best    {path}")
    click.echo(f"runs    {folder}\nfigure  {folder / 'trials.png'}")
    if seeds and files:
        plan = search.comparison(found, chosen)
        ended = run_all(plan, folder / "comparison", data_dir, console, quiet, modules_of(file), callbacks)
        labels = dict.fromkeys(cell.label for cell in plan.cells)
        groups = {label: [ended[cell.folder] for cell in plan.cells if cell.label == label] for label in labels}
        console.print(tables.fitted(tables.results(groups), console))
        click.echo(f"comparison  {folder / 'comparison'}")
        remark(
            notes.differences([read.read(folder / "comparison" / name) for name, summary in ended.items() if summary])
        )
