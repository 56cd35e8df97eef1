"""Commands that show runs: `report`, `compare`, `serve`."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from offbeat.errors import OffbeatError, RunFolderError

if TYPE_CHECKING:
    from offbeat.report import markup

FOLDERS = click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=pathlib.Path))


@click.command()
@FOLDERS
@click.option(
    "--html", "file", type=click.Path(path_type=pathlib.Path), help="HTML file to write (default: report.html)."
)
@click.option("--png", "folder", type=click.Path(path_type=pathlib.Path), help="Folder for figures as PNG and SVG.")
@click.option("--pdf", is_flag=True, help="Write figures as PDF too (without --png: to the folder figures).")
@click.option("--only", metavar="NAMES", help="Figures to write, such as accuracy,staleness (default: all).")
@click.option("--width", default=None, help="Width of the figures: column, page or centimeters.")
def report(
    folders: Sequence[pathlib.Path],
    file: pathlib.Path | None,
    folder: pathlib.Path | None,
    pdf: bool,
    only: str | None,
    width: str | None,
) -> None:
    """Write an HTML report that compares runs and shows each in detail.

    RUN is the folder of a run, of a sweep, or of several runs. The report is a single file that loads nothing from the
    network. Figures have 300 dpi and the text size of a paper.
    """
    from offbeat.report import figures, html, notes, read
    from offbeat.report.figure_style import inches

    records, remarks = notes.distinct(read.records(_existing(folders)))
    remarks += notes.differences(records)
    drawn = folder is not None or pdf or only is not None
    try:
        if drawn:
            folder, size = folder or pathlib.Path("figures"), None if width is None else inches(width)
            kinds = ("png", "svg", *(("pdf",) if pdf else ()))
            made = figures.draw(records, only.split(",") if only else None, size)
            figures.save(made, folder, kinds)
            click.echo(f"figures  {folder} ({len(made)}, each as {', '.join(kind.upper() for kind in kinds)})")
        if file is not None or not drawn:
            file = file or pathlib.Path("report.html")
            title = folders[0].resolve().name if len(folders) == 1 else f"{len(records)} runs"
            file.write_text(html.page(records, title), encoding="utf-8")
            click.echo(f"report   {file}")
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
    help="Value of the metric to reach; 0.85 or 85 for 85 % accuracy (default: the target of the runs).",
)
@click.option("--metric", help="Metric to compare, such as loss (default: the main metric).")
@click.option(
    "--at",
    metavar="AXIS=VALUE",
    help="Compare at a point instead of the end: virtual_seconds, version, bytes, updates or client_steps = a number.",
)
@click.option("--baseline", metavar="LABEL", help="Compare all others with this experiment (default: all pairs).")
@click.option("--latex", "form", flag_value="latex", help="Print the tables for LaTeX (booktabs).")
@click.option("--markdown", "form", flag_value="markdown", help="Print the tables in Markdown.")
def compare(
    folders: Sequence[pathlib.Path],
    target: float | None,
    metric: str | None,
    at: str | None,
    baseline: str | None,
    form: markup.Form | None,
) -> None:
    """Compare runs: results, the cost of reaching a target, paired differences, and the settings that differ.

    RUN is the folder of a run, of a sweep, or of several runs. Differences are taken seed by seed, with a confidence
    interval and the p-values of the paired t-test and the sign test.
    """
    from offbeat.report import notes, paired, read, tables
    from offbeat.report.config_diff import config_diff

    records, remarks = notes.distinct(read.records(_existing(folders)))
    point, info = point_of(at), paired.metric_of(records, metric)
    if target is not None:
        if (value := info.target(target)) is None:
            raise OffbeatError(
                f"--target: {target:g} is neither a fraction nor a percentage; give {info.name} as 0.85 or 85"
            )
        target = value
    shown = [tables.compared(records, target, metric, point)]
    if len({record.label for record in records}) > 1:
        found = paired.compare(records, metric, point, baseline)
        remarks = [*remarks, *found.notes]
        shown += [tables.differences(found)] if found.differences else []
        shown += [tables.settings(rows)] if (rows := config_diff(records)) else []
    _print(shown, [*remarks, *notes.differences(records)], form)


def point_of(text: str | None) -> dict[str, float] | None:
    """Return the point that `--at` names."""
    if text is None:
        return None
    name, _, value = text.partition("=")
    try:
        return {name.strip(): float(value)}
    except ValueError:
        raise OffbeatError(f"--at: {text!r} is not an axis and a number, such as virtual_seconds=100") from None


def _print(shown: Sequence[Table], remarks: Sequence[str], form: markup.Form | None) -> None:
    from offbeat.report import markup, tables

    if form is None:
        console = Console()
        for table in shown:
            console.print(tables.fitted(table, console))
        remark(remarks)
        return
    click.echo(markup.document(shown, remarks, form))


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


def _existing(folders: Sequence[pathlib.Path]) -> Sequence[pathlib.Path]:
    for folder in folders:
        if not folder.is_dir():
            raise RunFolderError(f"{folder} is not a folder")
    return folders
