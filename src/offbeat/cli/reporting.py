"""Commands that show runs: `report`, `compare`, `serve`."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Sequence

import click
from rich.console import Console

from offbeat.errors import OffbeatError, RunFolderError

FOLDERS = click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=pathlib.Path))


@click.command()
@FOLDERS
@click.option("--html", "file", type=click.Path(path_type=pathlib.Path), help="The page.  [default: report.html]")
@click.option("--png", "pictures", type=click.Path(path_type=pathlib.Path), help="Folder for pictures, PNG and SVG.")
def report(folders: Sequence[pathlib.Path], file: pathlib.Path | None, pictures: pathlib.Path | None) -> None:
    """Make one HTML file that shows runs side by side and each in detail.

    RUN is the folder of a run, of a sweep, or one that holds several.  The file needs no network and no other file.
    """
    from offbeat.report import html, plots, read

    records = read.records(_there(folders))
    try:
        if file is not None or pictures is None:
            file = file or pathlib.Path("report.html")
            title = folders[0].resolve().name if len(folders) == 1 else f"{len(records)} runs"
            file.write_text(html.page(records, title), encoding="utf-8")
            click.echo(f"report    {file}")
        if pictures is not None:
            pictures.mkdir(parents=True, exist_ok=True)
            groups: dict[str, list[pathlib.Path]] = {}
            for record in records:
                if record.metrics:
                    groups.setdefault(record.label, []).append(record.path)
            made = {f"accuracy-{over}": plots.accuracy(groups, over) for over in plots.AXES if groups}
            for number, record in enumerate(records):
                name = re.sub(r"[^\w.=,+-]+", "-", f"{record.label}-seed{record.seed}").strip("-.")[:80]
                twice = any(kind.startswith(f"{name}-") for kind in made)
                drawn = plots.of_run(record)
                made |= {f"{name}-{number}-{kind}" if twice else f"{name}-{kind}": f for kind, f in drawn.items()}
            for plain, figure in made.items():
                figure.savefig(pictures / f"{plain}.png")
                figure.savefig(pictures / f"{plain}.svg")
            click.echo(f"pictures  {pictures} ({len(made)}, each as PNG and SVG)")
    except OSError as error:
        raise RunFolderError(f"cannot write the report: {error}") from error
    for record in records:
        if record.state == read.BROKEN:
            click.echo(f"broken    {read.clean(str(record.path))}: {record.problem}", err=True)


@click.command()
@FOLDERS
@click.option("--target", type=click.FloatRange(0, 100), help="Accuracy in %.  [default: the runs' own]")
def compare(folders: Sequence[pathlib.Path], target: float | None) -> None:
    """Print runs side by side: accuracy, and what it took to reach a target."""
    from offbeat.report import read, tables

    records = read.records(_there(folders))
    console = Console()
    console.print(tables.fitted(tables.compared(records, target / 100 if target is not None else None), console))


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=pathlib.Path))
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Other addresses show the runs to others.")
def serve(folder: pathlib.Path, port: int, host: str) -> None:
    """Show the runs under DIR in a browser, while they run.  It only reads."""
    try:
        from offbeat.report.live import serve as begin
    except ImportError as error:
        raise OffbeatError(f'the live page needs {error.name}: pip install "offbeat[serve]"') from error
    _there([folder])
    try:
        begin(folder, host, port, lambda address: click.echo(f"{address}  (Ctrl-C ends it)"))
    except OSError as error:
        raise RunFolderError(f"cannot listen on {host}, port {port}: {error.strerror}") from error


def _there(folders: Sequence[pathlib.Path]) -> Sequence[pathlib.Path]:
    for folder in folders:
        if not folder.is_dir():
            raise RunFolderError(f"{folder} is no folder")
    return folders
