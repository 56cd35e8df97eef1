"""The runs of a reproduction: what `results/NAME.json` contains."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offbeat.errors import OffbeatError
from offbeat.files import write_atomic
from offbeat.reproductions import files

Run = Mapping[str, Any]
"""A run: `label`, `seed`, `machine`, `commit`, `span` (begin and end in seconds since 1970), `set` (what it has
otherwise than the file), `diverged`, its figures, `reached` (the cost of reaching targets), `curve`."""


@dataclass(frozen=True)
class Results:
    """The runs of a reproduction."""

    runs: Sequence[Run]
    seconds: float
    """Time in which at least one run was at work: runs of a pool work together."""

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Results:
        """Return results with the time that their runs took."""
        return cls(runs, busy(run["span"] for run in runs if "span" in run))

    @property
    def labels(self) -> dict[str, list[Run]]:
        """The finished runs by label."""
        return _by_label(run for run in self.runs if not run.get("diverged"))

    @property
    def seeds(self) -> int:
        """The largest number of runs of one label."""
        return max((len(group) for group in _by_label(self.runs).values()), default=0)

    @property
    def machines(self) -> list[str]:
        """The machines that made the runs."""
        return sorted({run["machine"] for run in self.runs})

    @property
    def commits(self) -> list[str]:
        """The commits at which the runs were collected."""
        return list(dict.fromkeys(run["commit"] for run in self.runs))

    def diverged(self, label: str) -> int:
        """Return the number of runs of a label that diverged."""
        return sum(run["label"] == label and bool(run.get("diverged")) for run in self.runs)

    def values(self, label: str, figure: str) -> dict[int, float]:
        """Return a figure of the finished runs of a label by seed, where it is known.

        Args:
            label: The label.
            figure: Such as `accuracy`, `target_seconds` or `target_rounds@0.75`; ∞ for a target that was not reached.
        """
        found: dict[int, float] = {}
        for run in self.runs:
            name, _, target = figure.partition("@")
            of = run.get("reached", {}).get(target, {}) if target else run
            if run["label"] == label and name in of:
                value = math.inf if of[name] is None and name.startswith("target_") else of[name]
                found |= {run["seed"]: float(value)} if value is not None else {}
        return found

    def changes(self, labels: Iterable[str]) -> dict[str, Any]:
        """Return what the runs of some labels have otherwise than the file."""
        wanted = set(labels)
        changed: dict[str, Any] = {}
        for run in self.runs:
            if run["label"] in wanted:
                changed |= run.get("set", {})
        return changed


def busy(spans: Iterable[tuple[float, float]]) -> float:
    """Return the seconds in which at least one run was at work."""
    total, until = 0.0, float("-inf")
    for begun, ended in sorted((begun, ended) for begun, ended in spans):
        total += max(0.0, ended - max(begun, until))
        until = max(until, ended)
    return total


def shortened(name: str, results: Results, labels: Iterable[str] | None = None) -> list[str]:
    """Return in which ways the runs of some labels are fewer or shorter than the file has them.

    Args:
        name: The reproduction.
        results: Its runs.
        labels: The labels to look at; by default all of the file.
    """
    planned = {cell.label: cell.table for cell in files.cells(name)}
    wanted = list(planned if labels is None else dict.fromkeys(labels))
    made = [label for label in wanted if results.labels.get(label) or results.diverged(label)]
    parts = [f"{len(made)} of {len(wanted)} cells"] if len(made) < len(wanted) else []
    for key, unit in (("rounds", "rounds"), ("virtual_seconds", "s")):  # fewer rounds say it all
        pairs = {(results.changes([label]).get(key, math.inf), planned[label].get(key, math.inf)) for label in made}
        if less := sorted(pair for pair in pairs if pair[0] < pair[1]):
            few = " to ".join(f"{had:,g}" for had in dict.fromkeys((less[0][0], less[-1][0])))
            return [*parts, f"{few} of {less[-1][1]:,g} {unit}".replace(" of inf", "")]
    return parts


def merged(name: str, *parts: Results) -> Results:
    """Return the runs of several results; a later run replaces an earlier one with its label and seed.

    Raises:
        OffbeatError: Runs of one label do not have the same settings, or a label is not in the file.
    """
    order = list(dict.fromkeys(cell.label for cell in files.cells(name)))
    runs = {(run["label"], run["seed"]): run for part in parts for run in part.runs}
    for label, group in _by_label(runs.values()).items():
        if label not in order:
            raise OffbeatError(f"{label!r} is not a cell of {name}.toml")
        settings = [run.get("set", {}) for run in group]
        if any(each != settings[0] for each in settings):
            raise OffbeatError(f"the runs of {label!r} do not belong together: they have {settings}")
    together = sorted(runs.values(), key=lambda run: (order.index(run["label"]), run["seed"]))
    if len(parts) > 1 and (old := [run for run in together if "span" not in run]):
        raise OffbeatError(f"{old[0]['label']!r} was collected by an earlier version; collect all runs of {name} again")
    return Results.of(together)


def read(path: pathlib.Path) -> Results | None:
    """Return the runs in a file, or None if there is no such file."""
    if not path.is_file():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    if "commit" not in found:
        return Results.of(found["runs"])
    # The first format has what all runs share at the top, and no spans.
    shared = {"machine": "; ".join(found["machines"]), "commit": found["commit"], "set": found.get("set", {})}
    ended = [shared | run for run in found["runs"]]
    failed = [shared | {"label": label, "seed": 0, "diverged": True} for label in found.get("diverged", [])]
    return Results([*ended, *failed], found["seconds"])


def write(results: Results, path: pathlib.Path) -> None:
    """Write runs to a file, one per line."""
    path.parent.mkdir(exist_ok=True)
    lines = ",\n  ".join(json.dumps(run, ensure_ascii=False) for run in results.runs)
    write_atomic(path, f'{{"runs": [\n  {lines}\n]}}\n'.encode())


def _by_label(runs: Iterable[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run["label"], []).append(run)
    return groups
