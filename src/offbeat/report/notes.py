"""What a reader of a comparison should know: runs that occur twice, other data or models, other budgets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from offbeat.report.read import BROKEN, Record, clean, experiment_key
from offbeat.report.tables import size

EQUAL = 1.02  # ratio up to which budgets count as equal
BUDGETS: dict[str, tuple[str, Callable[[float], str]]] = {
    "version": ("rounds", "{:,.0f}".format),
    "updates": ("updates", "{:,.0f}".format),
    "client_steps": ("client steps", "{:,.0f}".format),
    "bytes_up": ("uploads", size),
    "virtual_seconds": ("seconds", "{:,.0f}".format),
}
"""Budgets by their column in `metrics.jsonl`, with their name and format."""


def distinct(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """Return the records without runs that were done twice, and a note for each of those.

    Of several runs with the same config and seed, the one with the most evaluations counts; runs are deterministic.
    """

    def key_of(record: Record) -> str:
        return repr((experiment_key(record), record.seed, record.setting.get("objects")))

    best: dict[str, Record] = {}
    for record in records:
        key = key_of(record)
        if record.state != BROKEN and (key not in best or len(record.metrics) > len(best[key].metrics)):
            best[key] = record
    kept, notes = [], []
    for record in records:
        twin = record if record.state == BROKEN else best[key_of(record)]
        if twin is record:
            kept.append(record)
        else:
            places = clean(str(record.path)), clean(str(twin.path))
            notes.append(f"{places[0]} has the config and seed of {places[1]} and is left out")
    return kept, notes


def differences(records: Sequence[Record]) -> list[str]:
    """Return in what the runs of a comparison differ although it is not what they compare, and their budgets."""
    notes = []
    for part in ("data", "model", "task"):
        if len({repr(record.config.get(part)) for record in records if record.config}) > 1:
            notes.append(f"the runs differ in [{part}]: their figures are not about the same problem")
    return [*notes, *_budgets(records)]


def _budgets(records: Sequence[Record]) -> list[str]:
    """Return the budgets of the experiments, if there are several: given ones, equal ones and the range of others."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.metrics:
            groups.setdefault(record.label, []).append(record)
    equal, ranges = [], []
    for name, (words, form) in BUDGETS.items() if len(groups) > 1 else ():
        means = [
            statistics.fmean(float(each.metrics[-1].get(name) or 0) for each in group) for group in groups.values()
        ]
        low, high = min(means), max(means)
        if high <= EQUAL * low:
            equal.append(f"{form(high)} {words}")
        else:
            ranges.append(f"{form(low)} to {form(high)} {words}")
    given = _given(records) if len(groups) > 1 else []
    if not ranges:
        return given
    shared = f"equal for all: {', '.join(equal)}" if equal else "none is equal for all"
    return [*given, f"budgets: {', '.join(ranges)}; {shared}"]


def _given(records: Sequence[Record]) -> list[str]:
    """Return the budget that ends all of the runs, or a warning if their budgets differ."""
    budgets = [record.config.get("budget") for record in records if record.config]
    if all(budget is None for budget in budgets):
        return []
    if any(budget != budgets[0] for budget in budgets):
        return ["the runs differ in [budget]"]
    given = budgets[0] if isinstance(budgets[0], dict) else {}
    amounts = [f"{form(given[name])} {words}" for name, (words, form) in BUDGETS.items() if _is_number(given.get(name))]
    return [f"each run ends after {' or '.join(amounts)}"] if amounts else []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
