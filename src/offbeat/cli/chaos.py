"""The command `chaos`."""

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
@click.option("--kills", type=click.IntRange(min=0), default=50, show_default=True, help="Number of kills.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the faults.")
@click.option("--only", metavar="N|messages", help="Repeat only the N-th killed run, or only the message faults.")
@click.option(
    "--out",
    type=click.Path(path_type=pathlib.Path),
    help="Folder for the result, chaos.json (default: a new one under runs/).",
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
    """Test fault tolerance by killing runs and corrupting messages.

    FILE is a TOML file or preset:NAME of a run that takes seconds. Kills hit turns of the loop and writes of
    checkpoints; disks fill up and folders become read-only; messages are lost, duplicated, delayed and damaged. A
    killed run must produce the same result, bit for bit. The exit status is 1 if an invariant is violated; the output
    then includes a command that reproduces the failure.
    """
    from offbeat.runs import config

    enable_tools("chaos")
    from offbeat_chaos import console as display
    from offbeat_chaos.campaign import Campaign
    from offbeat_chaos.kills import Command

    table = read_table(file, assignments)
    if SEVERAL & table.keys():
        raise ConfigError(f"{file} describes several runs; chaos needs a file with a single run")
    if only is not None and only != "messages" and not (only.isdecimal() and int(only) > 0):
        raise ConfigError(f"{only!r} is not valid: give the number of a run, or 'messages'", key="--only")
    experiment = config.parse(table)
    options = [word for assignment in assignments for word in ("--set", assignment)]
    options += ["--data-dir", str(data_dir)] if data_dir is not None else []
    console = Console()
    with display.CampaignBars(Console(stderr=True)) as bars:
        campaign = Campaign(
            Command(file, options), experiment.seed, data_dir, out or new_folder(file, "chaos"),
            0 if only == "messages" else kills, seed, bars.update,
        )  # fmt: skip
        number = int(only) if only is not None and only != "messages" else None
        found = campaign.run(number, messages=number is None)
    console.print(display.table(found))
    click.echo(display.sentence(found))
    click.echo(f"result  {campaign.out / 'chaos.json'}")
    if not found["held"]:
        click.echo(display.evidence(found), err=True)
        sys.exit(BROKEN)
