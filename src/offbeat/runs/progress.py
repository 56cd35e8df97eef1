"""Progress displays: bars in a terminal and in Jupyter; elsewhere plain lines for long runs."""

from __future__ import annotations

import contextlib
import importlib.util
import pathlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from offbeat.data.preparing import Preparing, watched
from offbeat.runs.result import ProgressSnapshot, Watch

if TYPE_CHECKING:
    from offbeat.runs.callbacks import Callback
    from offbeat.runs.sweep import Cell, Sweep

PLAIN_SECONDS = 5.0  # between two plain lines
WIDE = 60  # columns from which the remaining time is shown


def headline(snapshot: ProgressSnapshot) -> str:
    """Return the current figures as one short line."""
    counters = snapshot.counters
    metric, value = snapshot.metric, "–"
    if snapshot.metrics:
        value = f"{metric.format(snapshot.metrics[-1][metric.name])} {metric.unit}".rstrip()
    name = "acc" if metric.name == "accuracy" else metric.name
    speed = counters.client_steps / counters.wall_seconds if counters.wall_seconds else 0.0
    clock = "s" if snapshot.real else "s virtual"
    staleness = f"τ {counters.staleness_mean:.1f}/{counters.staleness_max}"
    testing = "" if snapshot.testing is None else f"  testing {snapshot.testing:.0%}"
    return f"{counters.virtual_seconds:,.0f} {clock}  {name} {value}  {staleness}  {speed:,.0f} steps/s{testing}"


def done(snapshot: ProgressSnapshot) -> float:
    """Return the completed share of a run: by rounds, virtual time or budget, whichever is largest."""
    shares = [snapshot.counters.version / snapshot.rounds, snapshot.used or 0.0]
    if snapshot.virtual_limit:
        shares.append(snapshot.counters.virtual_seconds / snapshot.virtual_limit)
    return min(1.0, max(shares))


def _evaluated(snapshot: ProgressSnapshot) -> int:
    """Return the version that was evaluated last, or -1."""
    return snapshot.metrics[-1]["version"] if snapshot.metrics else -1


def _draws_in_jupyter(console: Console) -> bool:
    """Return whether the console is a notebook in which bars can be redrawn."""
    return console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None


class _Rows(Progress):
    """Bars with a line of figures below."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the table of bars, then one line of figures per bar."""
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            if task.visible and task.fields["headline"]:
                yield Text("  " + task.fields["headline"], no_wrap=True, overflow="ellipsis")


class Bars:
    """A context that shows progress bars in a terminal or a notebook, including one while data is prepared.

    Args:
        console: Where to draw.
        quiet: Show nothing.
        still: Redraw only on changes, so that drawing does not disturb measurements.
    """

    def __init__(self, console: Console, quiet: bool = False, still: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self.live = (console.is_terminal or _draws_in_jupyter(console)) and not quiet
        name = Column(no_wrap=True, overflow="ellipsis", max_width=max(10, console.width // 3))
        columns: list[ProgressColumn] = [
            TextColumn("[bold]{task.description}", table_column=name),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[note]}"),
        ]
        columns += [TextColumn("ETA"), TimeRemainingColumn()] if console.width >= WIDE else []
        self._rows = _Rows(*columns, console=console, transient=True, auto_refresh=not still)
        self._preparing: tuple[str, TaskID | None] = "", None
        self._context = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if self.live:
            self._context.enter_context(self._rows)
            self._context.enter_context(watched(self._prepare))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.close()

    def add(self, name: str, total: float | None, note: str = "", headline: str = "") -> TaskID:
        """Add a bar; a total of None means that it is unknown."""
        return self._rows.add_task(escape(name), total=total, note=note, headline=headline)

    def show(self, row: TaskID, done: float, note: str, headline: str = "") -> None:
        """Update a bar."""
        self._rows.update(row, completed=done, note=note, headline=headline)

    def remove(self, row: TaskID) -> None:
        """Remove a bar."""
        self._rows.remove_task(row)

    def _prepare(self, now: Preparing | None) -> None:
        what, row = self._preparing
        if row is not None and (now is None or now.what != what):
            self.remove(row)
            row = None
        if now is not None:
            row = self.add(now.what, now.total) if row is None else row
            self.show(row, now.done, _amount(now))
        self._preparing = (now.what if now is not None else ""), row


def _amount(now: Preparing) -> str:
    """Return the amount of data that has been prepared, as text."""
    if not now.done and now.total is None:
        return "reading"
    done, total = (n / 1e6 if now.in_bytes else n for n in (now.done, now.total or 0))
    of = f" of {total:,.0f}" if now.total else ""
    return f"{done:,.0f}{of}" + (" MB" if now.in_bytes else "")


class Measuring(Bars):
    """The progress of several measurements. Nothing is redrawn while one is running."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, still=True)
        self._row: TaskID | None = None

    def next(self, what: str, number: int, count: int) -> None:
        """Show that measurement `number` of `count` is starting."""
        if self._row is None:
            self._row = self.add("measuring", count)
        self.show(self._row, number, f"{number + 1} of {count}", what)
        if self.live:
            self._rows.refresh()


@dataclass
class CombinedProgress:
    """The progress of several concurrent runs as one."""

    snapshots: dict[int, ProgressSnapshot] = field(default_factory=dict)

    def watch(self, place: int, show: Watch) -> Watch:
        """Return the watch of the run at the given position; `show` receives the combined progress."""

        def watch(snapshot: ProgressSnapshot) -> None:
            self.snapshots[place] = snapshot
            show(self.sum())

        return watch

    def sum(self) -> ProgressSnapshot:
        """Return the sum of rounds, steps and updates, with the accuracy and time of the slowest run."""
        snapshots = list(self.snapshots.values())
        last = min(snapshots, key=done)
        parts = [snapshot.counters for snapshot in snapshots]
        counters = replace(
            last.counters,
            version=sum(part.version for part in parts),
            updates=sum(part.updates for part in parts),
            client_steps=sum(part.client_steps for part in parts),
            staleness_sum=sum(part.staleness_sum for part in parts),
            staleness_max=max(part.staleness_max for part in parts),
        )
        rounds = sum(each.rounds for each in snapshots)
        return ProgressSnapshot(counters, rounds, last.virtual_limit, last.metrics, metric=last.metric, used=last.used)


class Display(Bars):
    """The progress of one run. The run calls `watch` a few times per second."""

    def __init__(self, console: Console, label: str, quiet: bool = False) -> None:
        super().__init__(console, quiet)
        self._run = _RunRow(self, label, "")

    def watch(self, snapshot: ProgressSnapshot) -> None:
        """Show the progress of the run."""
        self._run.show(snapshot)


class SweepDisplay(Bars):
    """The progress of a sweep: a bar for the whole sweep and one for the current runs."""

    def __init__(self, console: Console, runs: int, quiet: bool = False) -> None:
        super().__init__(console, quiet)
        self.runs = runs
        self._ended = 0
        self._all = self.add("sweep", runs)
        self._now: _RunRow | None = None

    def run(
        self,
        plan: Sweep,
        folder: pathlib.Path,
        data_dir: pathlib.Path | None = None,
        modules: pathlib.Path | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> dict[str, dict[str, Any]]:
        """Run a sweep and show its progress; see `Sweep.run`.

        Returns:
            The summaries of the runs that ended, by run folder: empty for a run that diverged. Some are missing if the
            sweep was interrupted.
        """
        ended: dict[str, dict[str, Any]] = {}

        def watch(cells: Sequence[Cell]) -> list[Watch | None]:
            return self.begin([f"{cell.label} seed {cell.seed}" for cell in cells])

        with contextlib.suppress(KeyboardInterrupt):
            for cell, summary in plan.run(folder, data_dir, watch, modules, callbacks, self.check):
                if summary is None:
                    break
                ended[cell.folder] = summary
                self.end()
        return ended

    def check(self, number: int) -> None:
        """Show how many runs have been validated."""
        self._rows.update(self._all, note=f"{number} of {self.runs} checked")

    def begin(self, labels: Sequence[str]) -> list[Watch | None]:
        """Show that runs start; return a watch for each of them."""
        self._clear()
        label = labels[0] if len(labels) == 1 else f"{len(labels)} runs at once"
        self._now, together = _RunRow(self, label, f"{self._ended} of {self.runs} runs, "), CombinedProgress()

        def show(snapshot: ProgressSnapshot) -> None:
            assert self._now is not None
            self._now.show(snapshot)
            shares = [done(each) for each in together.snapshots.values()]
            self._show(sum(shares), sum(share >= 1 for share in shares))

        return [together.watch(place, show) for place in range(len(labels))]

    def end(self) -> None:
        """Show that a run has ended."""
        self._clear()
        self._ended += 1
        self._show(0.0, 0)

    def _show(self, share: float, ended: int) -> None:
        self.show(self._all, self._ended + share, f"{self._ended + ended} of {self.runs} runs")

    def _clear(self) -> None:
        if self._now is not None:
            self.remove(self._now.row)
            self._now = None


class _RunRow:
    """The bar or the plain lines of a run, or of several concurrent ones."""

    def __init__(self, bars: Bars, label: str, before: str) -> None:
        self.bars, self.label, self.before = bars, label, before
        self.row = bars.add(label, 1.0, headline="starting")
        self._last = time.monotonic()
        self._shown = -1  # version of the last evaluation that was printed

    def show(self, snapshot: ProgressSnapshot) -> None:
        """Update the bar, or print a line where there are no bars."""
        if self.bars.live:
            limited = snapshot.virtual_limit is not None or snapshot.used is not None
            note = f"round {snapshot.counters.version:,}" + ("" if limited else f" of {snapshot.rounds:,}")
            self.bars.show(self.row, done(snapshot), note, headline(snapshot))
        elif not self.bars.quiet:
            self._print(snapshot)

    def _print(self, snapshot: ProgressSnapshot) -> None:
        """Print a plain line after a new evaluation or during a long one, at most every few seconds."""
        evaluated = _evaluated(snapshot)
        news = evaluated != self._shown or snapshot.testing is not None
        if time.monotonic() - self._last < PLAIN_SECONDS or not news:
            return
        self._last, self._shown = time.monotonic(), evaluated
        share = done(snapshot)
        left = f"about {snapshot.counters.wall_seconds * (1 - share) / share:.0f} s left" if share else "starting"
        self.bars.console.print(
            f"{self.before}{self.label}: round {snapshot.counters.version}, {headline(snapshot)}, {left}",
            soft_wrap=True, highlight=False, markup=False,
        )  # fmt: skip
