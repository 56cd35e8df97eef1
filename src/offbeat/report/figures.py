"""All figures of some runs as files."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from offbeat.errors import OffbeatError
from offbeat.report import plots
from offbeat.report.figure_style import PAGE, colors_from, resized
from offbeat.report.read import Record

if TYPE_CHECKING:
    from offbeat.report.figure import InlineFigure as Figure


def draw(records: Sequence[Record], only: Sequence[str] | None = None, width: float | None = None) -> dict[str, Figure]:
    """Draw the comparison of the runs and the figures of each, by file name.

    Args:
        records: The runs; those with one label are seeds of one experiment.
        only: Names of metrics, such as accuracy, and of figures of a run, such as staleness; None for all.
        width: Width in inches; by default that of a page for comparisons and that of a column for the figures of a run.

    Raises:
        OffbeatError: `only` has a name for which there is no figure.
    """
    metrics = list(dict.fromkeys(info.name for record in records if record.metrics for info in record.task_metrics))
    kinds = [plots.figures_of(record) for record in records]
    known = dict.fromkeys([*metrics, *(kind.partition(" ")[0] for group in kinds for kind in group)])
    wanted = [name.strip() for name in only] if only is not None else list(known)
    for name in wanted:
        if name not in known:
            raise OffbeatError(f"--only: there is no figure {name!r}; there are {', '.join(known)}")
    groups: dict[str, list[pathlib.Path]] = {}
    for record in records:
        if record.metrics:
            groups.setdefault(record.label, []).append(record.path)
    made = {
        f"{plain(name)}-{over}": plots.curves(groups, over, metric=name, width=width or PAGE)
        for name in metrics if name in wanted for over in plots.AXES
    }  # fmt: skip
    labels = list(dict.fromkeys(record.label for record in records))
    for number, (record, group) in enumerate(zip(records, kinds, strict=True)):
        chosen = {kind: make for kind, make in group.items() if kind.partition(" ")[0] in wanted}
        name = plain(f"{record.label}-seed{record.seed}")
        name = f"{name}-{number}" if any(each.startswith(f"{name}-") for each in made) else name
        with colors_from(labels.index(record.label)):
            made |= {f"{name}-{plain(kind)}": _drawn(make, width) for kind, make in chosen.items()}
    return made


def save(made: Mapping[str, Figure], folder: pathlib.Path, kinds: Sequence[str] = ("png", "svg")) -> None:
    """Write figures in several formats, with fonts that publishers accept."""
    from matplotlib import rc_context

    folder.mkdir(parents=True, exist_ok=True)
    with rc_context({"pdf.fonttype": 42}):  # TrueType instead of Type 3
        for name, figure in made.items():
            for kind in kinds:
                figure.savefig(folder / f"{name}.{kind}")


def plain(name: str) -> str:
    """Return a name that is safe for files."""
    return re.sub(r"[^\w.=,+-]+", "-", name).strip("-.")[:80]


def _drawn(make: Callable[[], Figure] | partial[Figure], width: float | None) -> Figure:
    return make() if width is None else resized(make(), width)
