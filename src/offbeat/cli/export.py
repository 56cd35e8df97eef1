"""The command `export`."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence

import click

from offbeat.errors import ConfigError


@click.command()
@click.argument("runs", metavar="RUN…", nargs=-1, required=True, type=click.Path(path_type=pathlib.Path))
@click.option("--csv", "file", type=click.Path(path_type=pathlib.Path, allow_dash=True), default="-",
              show_default=True, metavar="FILE", help="File to write; - is the standard output.")  # fmt: skip
@click.option("--updates", is_flag=True, help="Write one row per completed job instead of one per evaluation.")
def export(runs: Sequence[pathlib.Path], file: pathlib.Path, updates: bool) -> None:
    """Write the metrics of runs as CSV.

    RUN is the folder of a run or of a sweep; the first column names the run. A file that a killed run has left
    half-written is an error; `offbeat resume` repairs it.
    """
    from offbeat.report import export as tables

    table = tables.updates(runs) if updates else tables.metrics(runs)
    if str(file) == "-":
        table.write(sys.stdout)
        return
    if file.is_dir():
        raise ConfigError(f"cannot write {file}: Is a directory", key="--csv")
    part = file.with_name(f".{file.name}.part")
    try:
        with part.open("w", encoding="utf-8", newline="") as out:
            table.write(out)
        part.replace(file)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}", key="--csv") from error
    finally:
        part.unlink(missing_ok=True)
