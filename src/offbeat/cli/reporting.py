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
@click.option(
    "--html", "file", type=click.Path(path_type=pathlib.Path), help="HTML file to write (default: report.html)."
)
@click.option("--png", "figures", type=click.Path(path_type=pathlib.Path), help="Folder for figures as PNG and SVG.")
def report(folders: Sequence[pathlib.Path], file: pathlib.Path | None, figures: pathlib.Path | None) -> None:
    """Write an HTML report that compares runs and shows each in detail.

    RUN is the folder of a run, of a sweep, or of several runs. The report is a single file that loads nothing from the
    network.
    """
    from offbeat.report import html, notes, plots, read

    records, remarks = notes.distinct(read.records(_existing(folders)))
    remarks += notes.differences(records)
    try:
        if file is not None or figures is None:
            file = file or pathlib.Path("report.html")
            title = folders[0].resolve().name if len(folders) == 1 else f"{len(records)} runs"
            file.write_text(html.page(records, title), encoding="utf-8")
            click.echo(f"report   {file}")
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
            groups: dict[str, list[pathlib.Path]] = {}
            for record in records:
                if record.metrics:
                    groups.setdefault(record.label, []).append(record.path)
            name = plots.main_metric(record for record in records if record.metrics).name
            made = {f"{plain(name)}-{over}": plots.curves(groups, over) for over in plots.AXES if groups}
            for number, record in enumerate(records):
                name = plain(f"{record.label}-seed{record.seed}")
                twice = any(kind.startswith(f"{name}-") for kind in made)
                drawn = plots.of_run(record)
                made |= {f"{name}-{number}-{kind}" if twice else f"{name}-{kind}": f for kind, f in drawn.items()}
            for file_name, figure in made.items():
                figure.savefig(figures / f"{file_name}.png")
                figure.savefig(figures / f"{file_name}.svg")
            click.echo(f"figures  {figures} ({len(made)}, each as PNG and SVG)")
    except OSError as error:
        raise RunFolderError(f"cannot write the report: {error}") from error
    remark(remarks)
    for record in records:
        if record.state == read.BROKEN:
            click.echo(f"broken   {read.clean(str(record.path))}: {record.problem}", err=True)


@click.command()
@FOLDERS
@click.option(
    "--target",
    type=float,
    help="Value of the main metric to reach, in its unit: 85 for 85 % accuracy (default: the target of the runs).",
)
def compare(folders: Sequence[pathlib.Path], target: float | None) -> None:
    """Print a table that compares runs: the main metric, and the cost of reaching a target.

    RUN is the folder of a run, of a sweep, or of several runs.
    """
    from offbeat.report import notes, read, tables

    records, remarks = notes.distinct(read.records(_existing(folders)))
    console = Console()
    if target is not None:
        metric = records[0].metric
        if metric.unit == "%" and not 0 <= target <= 100:
            raise OffbeatError(f"--target: {target:g} is not a percentage; give {metric.name} from 0 to 100")
        target /= metric.scale
    console.print(tables.fitted(tables.compared(records, target), console))
    remark([*remarks, *notes.differences(records)])


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=pathlib.Path))
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 selects a free one."
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; others than the default may expose the runs to the network.",
)
def serve(folder: pathlib.Path, port: int, host: str) -> None:
    """Show the runs under DIR in a browser, live.

    The server only reads the run folders.
    """
    try:
        from offbeat.report.live import serve as begin
    except ImportError as error:
        raise OffbeatError(
            f"the live page needs {error.name}; install it with: pip install 'offbeat[serve]'"
        ) from error
    _existing([folder])
    try:
        begin(folder, host, port, lambda address: click.echo(f"{address}  (press Ctrl-C to stop)"))
    except OSError as error:
        raise RunFolderError(f"cannot listen on {host}, port {port}: {error.strerror}") from error


def remark(notes: Sequence[str]) -> None:
    """Print what a reader of a comparison should know."""
    console = Console()
    for note in notes:
        console.print(f"note    {note}", markup=False, highlight=False)


def plain(name: str) -> str:
    """Return a name that is safe for files."""
    return re.sub(r"[^\w.=,+-]+", "-", name).strip("-.")[:80]


def _existing(folders: Sequence[pathlib.Path]) -> Sequence[pathlib.Path]:
    for folder in folders:
        if not folder.is_dir():
            raise RunFolderError(f"{folder} is not a folder")
    return folders
