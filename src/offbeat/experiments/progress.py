"""What is seen while a run goes on: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from types import TracebackType

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from offbeat.experiments.run import Glance, Watch

PLAIN_SECONDS = 5.0  # between two plain lines


def headline(glance: Glance) -> str:
    """The figures of the moment in one short line."""
    tally = glance.tally
    accuracy = f"{100 * glance.metrics[-1]['accuracy']:.1f} %" if glance.metrics else "–"
    speed = tally.client_steps / tally.wall_seconds if tally.wall_seconds else 0.0
    clock = "s" if glance.real else "s virtual"
    return (
        f"{tally.virtual_seconds:,.0f} {clock}  acc {accuracy}  τ {tally.staleness_mean:.1f}/{tally.staleness_max}"
        f"  {speed:,.0f} steps/s"
    )


def done(glance: Glance) -> float:
    """Share of the run that is behind us: by rounds or by virtual time, whichever ends it first."""
    shares = [glance.tally.version / glance.rounds]
    if glance.virtual_limit:
        shares.append(glance.tally.virtual_seconds / glance.virtual_limit)
    return min(1.0, max(shares))


def _tested(glance: Glance) -> int:
    """The last version that was tested; -1 for none."""
    return glance.metrics[-1]["version"] if glance.metrics else -1


class _Bar(Progress):
    """A bar, and under it the figures of the moment."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            yield Text("  " + task.fields["headline"], no_wrap=True, overflow="ellipsis")


@dataclass
class Together:
    """What runs that go on at once have shown last, as one."""

    glances: dict[int, Glance] = field(default_factory=dict)

    def watch(self, place: int, show: Watch) -> Watch:
        """For the run at this place; `show` is given the sum."""

        def watch(glance: Glance) -> None:
            self.glances[place] = glance
            show(self.sum())

        return watch

    def sum(self) -> Glance:
        """The rounds, steps and updates of all; the figures of accuracy and time are of the run that is least far."""
        glances = list(self.glances.values())
        last = min(glances, key=done)
        tallies = [glance.tally for glance in glances]
        tally = replace(
            last.tally,
            version=sum(t.version for t in tallies),
            updates=sum(t.updates for t in tallies),
            client_steps=sum(t.client_steps for t in tallies),
            staleness_sum=sum(t.staleness_sum for t in tallies),
            staleness_max=max(t.staleness_max for t in tallies),
        )
        return Glance(tally, sum(g.rounds for g in glances), last.virtual_limit, last.metrics)


class Display:
    """A context in which runs report.  `watch` is given to a run and called a few times a second."""

    def __init__(self, console: Console, label: str, quiet: bool = False) -> None:
        self.console, self.label, self.quiet = console, label, quiet
        self.live = console.is_terminal and not quiet
        self._last = time.monotonic()
        self._seen = -1  # version of the last test that was told
        self._bar = _Bar(
            TextColumn("[bold]{task.description}", markup=True),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[version]}"),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task(escape(label), total=1.0, headline="starting", version="")

    def __enter__(self) -> Display:
        if self.live:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self._bar.stop()

    def watch(self, glance: Glance) -> None:
        if self.quiet:
            return
        if self.live:
            version = f"round {glance.tally.version:,}" + (
                f" of {glance.rounds:,}" if glance.virtual_limit is None else ""
            )
            self._bar.update(self._task, completed=done(glance), headline=headline(glance), version=version)
        elif time.monotonic() - self._last > PLAIN_SECONDS and (tested := _tested(glance)) != self._seen:
            self._last, self._seen = time.monotonic(), tested
            share = done(glance)
            left = f"about {glance.tally.wall_seconds * (1 - share) / share:.0f} s left" if share else "just begun"
            self.console.print(
                f"{self.label}: round {glance.tally.version}, {headline(glance)}, {left}",
                soft_wrap=True, highlight=False, markup=False,
            )  # fmt: skip
