"""The command line: `offbeat`."""

from __future__ import annotations

import pathlib
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console

from offbeat.cli.bench import bench
from offbeat.cli.catalog import list_, show
from offbeat.cli.chaos import chaos
from offbeat.cli.common import (
    INTERRUPTED,
    SEARCH,
    SEVERAL,
    Group,
    data_dir_option,
    file_argument,
    modules_of,
    new_folder,
    out_option,
    read_table,
    settings_options,
    stem,
    track_option,
    track_words,
)
from offbeat.cli.deploy import deploy, replay
from offbeat.cli.export import export
from offbeat.cli.reporting import compare, report, serve
from offbeat.cli.reproduce import reproduce
from offbeat.cli.sweeping import sweep
from offbeat.cli.tuning import tune
from offbeat.errors import ConfigError
from offbeat.version import __version__


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="offbeat")
def main() -> None:
    """Asynchronous federated learning, simulated in virtual time or deployed on Flower."""


for command in (bench, chaos, compare, deploy, export, list_, replay, report, reproduce, serve, show, sweep, tune):
    main.add_command(command)


@main.command()
@file_argument
@settings_options
@click.option("--seed", type=int, help="Seed of all random numbers.")
@out_option
@track_option
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def run(
    file: str,
    assignments: Sequence[str],
    device: str | None,
    executor: str | None,
    data_dir: pathlib.Path | None,
    seed: int | None,
    out: pathlib.Path | None,
    track: Sequence[str],
    quiet: bool,
) -> None:
    """Run one experiment.

    FILE is a TOML file or preset:NAME; `offbeat list` shows the presets.
    """
    from offbeat.runs import api, config
    from offbeat.runs.progress import Display
    from offbeat.runs.trackers import trackers

    table = read_table(file, assignments, device=device, executor=executor, seed=seed)
    if SEVERAL & table.keys():
        raise ConfigError(f"{file} describes several runs; run it with: offbeat sweep {shlex.quote(file)}")
    experiment, callbacks = config.parse(table), trackers(track)
    folder = out or new_folder(file, f"seed{experiment.seed}")
    console = Console()
    with Display(console, stem(file), quiet) as display:
        result = api.execute(
            experiment, out=folder, data_dir=data_dir, modules=modules_of(file), watch=display.watch,
            callbacks=callbacks,
        )  # fmt: skip
    _conclude(console, result, stem(file), track, quiet)


@main.command()
@click.argument("folder", type=click.Path(path_type=pathlib.Path))
@data_dir_option
@track_option
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def resume(folder: pathlib.Path, data_dir: pathlib.Path | None, track: Sequence[str], quiet: bool) -> None:
    """Resume an interrupted run.

    FOLDER is the run folder. The result equals that of an uninterrupted run.
    """
    from offbeat.runs import api
    from offbeat.runs.progress import Display
    from offbeat.runs.trackers import trackers

    experiment = api.stored(folder)
    callbacks = trackers(track)
    console = Console()
    with Display(console, folder.name, quiet) as display:
        result = api.continue_(experiment, folder, data_dir, display.watch, callbacks)
    _conclude(console, result, folder.name, track, quiet)


@main.command()
@file_argument
@settings_options
@click.option("--seed", type=int, help="Seed of all random numbers.")
@click.option("--png", type=click.Path(path_type=pathlib.Path), is_flag=False, flag_value=pathlib.Path("partition.png"),
              help="Draw the labels of each client into this file (default: partition.png).")  # fmt: skip
def partition(
    file: str,
    assignments: Sequence[str],
    device: str | None,
    executor: str | None,
    data_dir: pathlib.Path | None,
    seed: int | None,
    png: pathlib.Path | None,
) -> None:
    """Show how an experiment divides its data among clients.

    FILE is a TOML file or preset:NAME.
    """
    from offbeat.data import data_dir as place
    from offbeat.report import plots
    from offbeat.runs import config
    from offbeat.runs.progress import Bars

    table = read_table(file, assignments, device=device, executor=executor, seed=seed)
    experiment = config.parse({name: value for name, value in table.items() if name not in SEVERAL | SEARCH})
    with Bars(Console(stderr=True)):
        data = experiment.data.load(place(data_dir), experiment.seed)
    counts = data.label_counts()
    labels = (counts > 0).sum(axis=1)
    sizes = data.sizes
    click.echo(f"{data.clients} clients, {sizes.sum():,} examples, {data.dataset.classes or 'no class'} labels")
    click.echo(f"examples per client: {sizes.min()} to {sizes.max()}, median {int(sorted(sizes)[len(sizes) // 2])}")
    click.echo(f"labels per client:   {labels.min()} to {labels.max()}, mean {labels.mean():.1f}")
    if png is not None:
        try:
            plots.partition(counts).savefig(png)
        except (OSError, ValueError) as error:
            raise ConfigError(str(error), key="--png") from error
        click.echo(f"figure: {png}")


def _conclude(console: Console, result: Any, label: str, track: Sequence[str], quiet: bool) -> None:
    """Print the result of a run, or how to resume it."""
    from offbeat.report import tables

    if result.interrupted:
        arguments = shlex.join([str(result.folder), *track_words(track)])
        click.echo(
            f"interrupted at round {result.summary['rounds']}; resume with: offbeat resume {arguments}", err=True
        )
        sys.exit(INTERRUPTED)
    if not quiet:
        console.print(tables.fitted(tables.results({label: [result.summary]}), console))
        click.echo(f"run  {result.folder}")
