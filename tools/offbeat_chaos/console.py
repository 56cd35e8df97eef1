"""What people see of a campaign."""

from __future__ import annotations

import statistics
from typing import Any

from rich.console import Console
from rich.progress import TaskID
from rich.table import Table

from offbeat.runs.progress import Bars
from offbeat_chaos.messages import FATES


class Telling(Bars):
    """A bar for the kills, and one for the messages."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._bars: dict[str, TaskID] = {}

    def tell(self, what: str, done: float, total: float, note: str) -> None:
        if what not in self._bars:
            self._bars[what] = self.add(what, total)
        self.show(self._bars[what], done, f"{done:g} of {total:g}", note)


def table(found: dict[str, Any]) -> Table:
    rows = Table("invariant", "looked at", "", box=None, header_style="bold")
    rows.columns[1].justify = "right"
    for each in found["invariants"]:
        verdict = "not looked at" if not each["checks"] else "held" if each["held"] else "[red bold]broken"
        rows.add_row(each["name"], f"{each['checks']:,}", verdict)
    return rows


def sentence(found: dict[str, Any]) -> str:
    parts = [f"{found['kills']} kills of {len(found['runs'])} runs"]
    if found["held"] and found["kills"] < found["asked"]:
        parts.append(f"{found['asked']} were asked for: runs that end so soon cannot be killed more often")
    messages = found["messages"]
    if messages and "jobs" in messages:
        plain, faulty = (statistics.fmean(messages[name]) for name in ("accuracy", "accuracy_with_faults"))
        parts.append(
            f"{sum(messages['faults'].get(name, 0) for name in FATES)} faults in {messages['jobs']:,} trips, "
            f"{messages['faults'].get('vanished', 0)} clients vanished: {100 * faulty:.1f} % accuracy, "
            f"{100 * plain:.1f} % without"
        )
    elif messages:
        parts.append(f"no faults of messages: {messages['skipped']}")
    return f"{'; '.join(parts)}; {found['seconds']:.0f} s"


def evidence(found: dict[str, Any]) -> str:
    """The first thing that was broken, and how to see it again."""
    first = found["broken"][0]
    what = {name: value for name, value in first.items() if name not in ("invariant", "where")}
    lines = "\n".join(f"  {name}: {value}" for name, value in what.items())
    return f"broken: {first['invariant']}\n{first['where']}\n{lines}\nagain with: {found['replay']}"
