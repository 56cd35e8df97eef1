"""Faults on purpose."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence

import click
from rich.console import Console

from offbeat.cli.common import SEVERAL, data_dir_option, new_folder, read_table, set_option
from offbeat.cli.tools import enable_tools
from offbeat.errors import ConfigError

BROKEN = 1


@click.command()
@click.argument("file")
@set_option
@data_dir_option
@click.option("--kills", type=click.IntRange(min=0), default=50, show_default=True, help="How often runs are killed.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the faults; the runs' own seeds count on.")
@click.option("--only", metavar="N|messages", help="Only the N-th of the runs that are killed, or only the messages.")
@click.option(
    "--out", type=click.Path(path_type=pathlib.Path), help="Folder of the result, chaos.json (default: under runs/)."
)
def chaos(
    file: str,
    assignments: Sequence[str],
    data_dir: pathlib.Path | None,
    kills: int,
    seed: int,
    only: str | None,
    out: pathlib.Path | None,
) -> None:
    """Kill runs of FILE.toml at random moments and resume them; lose, double, delay and damage their messages.

    The runs should be short: seconds. Kills fall into turns of the loop and writes of checkpoints; disks are full,
    folders read-only. A run that was killed must come to the result of one that was not, bit for bit. Exit status 1
    when something is broken, with the line that does it again.
    """
    from offbeat.runs import config

    enable_tools("chaos")
    from offbeat_chaos import console as shown
    from offbeat_chaos.campaign import Campaign
    from offbeat_chaos.kills import Command

    table = read_table(file, assignments)
    if SEVERAL & table.keys():
        raise ConfigError(f"{file} describes several runs; chaos takes a file of one")
    if only is not None and only != "messages" and not (only.isdecimal() and int(only) > 0):
        raise ConfigError(f"{only!r} is neither the number of a run nor 'messages'", key="--only")
    experiment = config.parse(table)
    options = [word for assignment in assignments for word in ("--set", assignment)]
    options += ["--data-dir", str(data_dir)] if data_dir is not None else []
    console = Console()
    with shown.Telling(Console(stderr=True)) as telling:
        campaign = Campaign(
            Command(file, options), experiment.seed, data_dir, out or new_folder(file, "chaos"),
            0 if only == "messages" else kills, seed, telling.tell,
        )  # fmt: skip
        number = int(only) if only is not None and only != "messages" else None
        found = campaign.run(number, messages=number is None)
    console.print(shown.table(found))
    click.echo(shown.sentence(found))
    click.echo(f"result  {campaign.out / 'chaos.json'}")
    if not found["held"]:
        click.echo(shown.evidence(found), err=True)
        sys.exit(BROKEN)
