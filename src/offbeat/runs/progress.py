"""What is seen while something goes on: bars in a terminal; elsewhere nothing, or plain lines for what takes long."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from offbeat.data.preparing import Preparing, watched
from offbeat.runs.result import ProgressSnapshot, Watch

PLAIN_SECONDS = 5.0  # between two plain lines
WIDE = 60  # columns in which there is room for the time that is left


def headline(glance: ProgressSnapshot) -> str:
    """The figures of the moment in one short line."""
    counters = glance.counters
    accuracy = f"{100 * glance.metrics[-1]['accuracy']:.1f} %" if glance.metrics else "–"
    speed = counters.client_steps / counters.wall_seconds if counters.wall_seconds else 0.0
    clock = "s" if glance.real else "s virtual"
    staleness = f"τ {counters.staleness_mean:.1f}/{counters.staleness_max}"
    return f"{counters.virtual_seconds:,.0f} {clock}  acc {accuracy}  {staleness}  {speed:,.0f} steps/s"


def done(glance: ProgressSnapshot) -> float:
    """Share of the run that is behind us: by rounds or by virtual time, whichever ends it first."""
    shares = [glance.counters.version / glance.rounds]
    if glance.virtual_limit:
        shares.append(glance.counters.virtual_seconds / glance.virtual_limit)
    return min(1.0, max(shares))


def _tested(glance: ProgressSnapshot) -> int:
    """The last version that was tested; -1 for none."""
    return glance.metrics[-1]["version"] if glance.metrics else -1


class _Rows(Progress):
    """Bars, and under them the figures of the moment."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            if task.visible and task.fields["headline"]:
                yield Text("  " + task.fields["headline"], no_wrap=True, overflow="ellipsis")


class Bars:
    """A context with bars, in a terminal, and one more while data is prepared."""

    def __init__(self, console: Console, quiet: bool = False, still: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self.live = console.is_terminal and not quiet
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
        return self._rows.add_task(escape(name), total=total, note=note, headline=headline)

    def show(self, row: TaskID, done: float, note: str, headline: str = "") -> None:
        self._rows.update(row, completed=done, note=note, headline=headline)

    def remove(self, row: TaskID) -> None:
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
    """How much there is of what is prepared."""
    if not now.done and now.total is None:
        return "reading"
    done, total = (n / 1e6 if now.in_bytes else n for n in (now.done, now.total or 0))
    of = f" of {total:,.0f}" if now.total else ""
    return f"{done:,.0f}{of}" + (" MB" if now.in_bytes else "")


class Measuring(Bars):
    """Several measurements, one after the other.  During one, nothing moves."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, still=True)
        self._row: TaskID | None = None

    def tell(self, what: str, number: int, count: int) -> None:
        """The next is begun."""
        if self._row is None:
            self._row = self.add("measuring", count)
        self.show(self._row, number, f"{number + 1} of {count}", what)
        if self.live:
            self._rows.refresh()


@dataclass
class Together:
    """What runs that go on at once have shown last, as one."""

    glances: dict[int, ProgressSnapshot] = field(default_factory=dict)

    def watch(self, place: int, show: Watch) -> Watch:
        """For the run at this place; `show` is given the sum."""

        def watch(glance: ProgressSnapshot) -> None:
            self.glances[place] = glance
            show(self.sum())

        return watch

    def sum(self) -> ProgressSnapshot:
        """The rounds, steps and updates of all; the figures of accuracy and time are of the run that is least far."""
        glances = list(self.glances.values())
        last = min(glances, key=done)
        tallies = [glance.counters for glance in glances]
        counters = replace(
            last.counters,
            version=sum(t.version for t in tallies),
            updates=sum(t.updates for t in tallies),
            client_steps=sum(t.client_steps for t in tallies),
            staleness_sum=sum(t.staleness_sum for t in tallies),
            staleness_max=max(t.staleness_max for t in tallies),
        )
        return ProgressSnapshot(counters, sum(g.rounds for g in glances), last.virtual_limit, last.metrics)


class Display(Bars):
    """A context in which a run reports.  `watch` is given to the run and called a few times a second."""

    def __init__(self, console: Console, label: str, quiet: bool = False) -> None:
        super().__init__(console, quiet)
        self._run = _RunRow(self, label, "")

    def watch(self, glance: ProgressSnapshot) -> None:
        self._run.show(glance)


class SweepDisplay(Bars):
    """A context in which the runs of a sweep report: all of them, and those that are at work."""

    def __init__(self, console: Console, runs: int, quiet: bool = False) -> None:
        super().__init__(console, quiet)
        self.runs = runs
        self._ended = 0
        self._all = self.add("sweep", runs)
        self._now: _RunRow | None = None

    def check(self, number: int) -> None:
        """So many runs are found to be in order."""
        self._rows.update(self._all, note=f"{number} of {self.runs} checked")

    def begin(self, labels: Sequence[str]) -> list[Watch | None]:
        """These runs begin; each is given one of what this returns."""
        self._clear()
        label = labels[0] if len(labels) == 1 else f"{len(labels)} runs at once"
        self._now, together = _RunRow(self, label, f"{self._ended} of {self.runs} runs, "), Together()

        def show(glance: ProgressSnapshot) -> None:
            assert self._now is not None
            self._now.show(glance)
            shares = [done(each) for each in together.glances.values()]
            self._show(sum(shares), sum(share >= 1 for share in shares))

        return [together.watch(place, show) for place in range(len(labels))]

    def end(self) -> None:
        """A run has ended."""
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
    """What is shown of a run, or of several at once."""

    def __init__(self, bars: Bars, label: str, before: str) -> None:
        self.bars, self.label, self.before = bars, label, before
        self.row = bars.add(label, 1.0, headline="starting")
        self._last = time.monotonic()
        self._seen = -1  # version of the last test that was told

    def show(self, glance: ProgressSnapshot) -> None:
        if self.bars.live:
            limited = glance.virtual_limit is not None
            note = f"round {glance.counters.version:,}" + ("" if limited else f" of {glance.rounds:,}")
            self.bars.show(self.row, done(glance), note, headline(glance))
        elif not self.bars.quiet:
            self._tell(glance)

    def _tell(self, glance: ProgressSnapshot) -> None:
        """A plain line, now and then."""
        if time.monotonic() - self._last < PLAIN_SECONDS or (tested := _tested(glance)) == self._seen:
            return
        self._last, self._seen = time.monotonic(), tested
        share = done(glance)
        left = f"about {glance.counters.wall_seconds * (1 - share) / share:.0f} s left" if share else "just begun"
        self.bars.console.print(
            f"{self.before}{self.label}: round {glance.counters.version}, {headline(glance)}, {left}",
            soft_wrap=True, highlight=False, markup=False,
        )  # fmt: skip
