"""What `offbeat chaos` shows in a terminal."""

from __future__ import annotations

import statistics
from typing import Any

from rich.console import Console
from rich.progress import TaskID
from rich.table import Table

from offbeat.runs.progress import Bars
from offbeat_chaos.messages import FATES


class CampaignBars(Bars):
    """One progress bar for the kills and one for the messages.

    Args:
        console: Where to draw.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._tasks: dict[str, TaskID] = {}

    def update(self, stage: str, done: float, total: float, note: str) -> None:
        """Show the progress of a stage of the campaign."""
        if stage not in self._tasks:
            self._tasks[stage] = self.add(stage, total)
        self.show(self._tasks[stage], done, f"{done:g} of {total:g}", note)


def table(found: dict[str, Any]) -> Table:
    """Return a table of the invariants, how often each was checked, and the verdicts."""
    rows = Table("invariant", "checks", "", box=None, header_style="bold")
    rows.columns[1].justify = "right"
    for each in found["invariants"]:
        verdict = "not checked" if not each["checks"] else "held" if each["held"] else "[red bold]violated"
        rows.add_row(each["name"], f"{each['checks']:,}", verdict)
    return rows


def sentence(found: dict[str, Any]) -> str:
    """Return the campaign in one sentence."""
    parts = [f"{found['kills']} kills of {len(found['runs'])} runs"]
    if found["held"] and found["kills"] < found["asked"]:
        parts.append(f"{found['asked']} were requested, but the runs are too short for more")
    messages = found["messages"]
    if messages and "jobs" in messages:
        plain, faulty = (statistics.fmean(messages[name]) for name in ("accuracy", "accuracy_with_faults"))
        parts.append(
            f"{sum(messages['faults'].get(name, 0) for name in FATES)} faults in {messages['jobs']:,} trips, "
            f"{messages['faults'].get('vanished', 0)} clients vanished: {100 * faulty:.1f} % accuracy, "
            f"{100 * plain:.1f} % without faults"
        )
    elif messages:
        parts.append(f"no message faults: {messages['skipped']}")
    return f"{'; '.join(parts)}; {found['seconds']:.0f} s"


def evidence(found: dict[str, Any]) -> str:
    """Return the first violation and the command that reproduces it."""
    first = found["broken"][0]
    what = {name: value for name, value in first.items() if name not in ("invariant", "where")}
    lines = "\n".join(f"  {name}: {value}" for name, value in what.items())
    return f"violated: {first['invariant']}\n{first['where']}\n{lines}\nreproduce with: {found['replay']}"
