"""Figures and reports of runs that are at hand as records."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from offbeat.errors import OffbeatError, RunFolderError, nearest
from offbeat.report import html, plots
from offbeat.report.read import Record

if TYPE_CHECKING:
    from offbeat.report.figure import InlineFigure


def by_label(records: Sequence[Record]) -> Mapping[str, list[Record]]:
    """Return records by label; those of one label are seeds of one experiment."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.label, []).append(record)
    return groups


def curves(records: Sequence[Record], x: str) -> InlineFigure:
    """Draw the main metric of runs over a horizontal axis."""
    if x not in plots.AXES:
        raise OffbeatError(f"x: there is no axis {x!r}; {nearest(x, list(plots.AXES))}")
    some = [record for record in records if record.metrics]
    if not some:
        raise OffbeatError("nothing to draw: there is no evaluation yet")
    targets = {record.target for record in some}
    return plots.curves(by_label(some), x, targets.pop() if len(targets) == 1 else None)


def of_run(record: Record, what: str) -> InlineFigure:
    """Draw one of the figures of a run by its name."""
    drawn = plots.of_run(record)
    if what not in drawn:
        raise OffbeatError(f"this run has no figure {what!r}; {nearest(what, list(drawn))}")
    return drawn[what]


def report(
    records: Sequence[Record], file: str | pathlib.Path | None, folder: pathlib.Path | None, title: str
) -> pathlib.Path:
    """Write the report of runs as one HTML file.

    Args:
        records: The runs.
        file: The file; by default report.html in `folder`.
        folder: The folder of the runs; None stands for the working folder.
        title: The title of the page.
    """
    path = pathlib.Path(file) if file is not None else (folder or pathlib.Path()) / "report.html"
    try:
        path.write_text(html.page(records, title), encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"cannot write the report: {error}") from error
    return path
