"""Judge the papers' claims by our runs. The rules are in claims.toml; nothing here or there types a verdict.

A claim has `cells`, the labels that it compares, with {row} and {column} for those of the table; several lists of
labels are compared list by list. A label of another reproduction is written NAME::LABEL. `compare` states how:

level        the figure of each cell
difference   the first cell's figure minus the second's
ratio        the first cell's figure over the second's
order        the figures fall from cell to cell, or rise with `rising = true`

and `above`, `below`, `least`, `most` and `within` (of the paper's) bound every value, in points for accuracies. The
paper's values are those of paper.toml unless `printed` has them, or words in their place.
"""

from __future__ import annotations

import itertools
import math
import operator
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offbeat.reproductions import files
from offbeat.reproductions.comparison import ACCURACIES, entries, paired, ratio, scale, shown
from offbeat.reproductions.results import Results, read, shortened

MANY = 4  # values that a cell of the table shows one by one
BOUNDS: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "above": ("above {}", operator.gt),
    "below": ("below {}", operator.lt),
    "least": ("at least {}", operator.ge),
    "most": ("at most {}", operator.le),
}


@dataclass(frozen=True)
class Check:
    """A value that a claim is about."""

    words: str
    """What its cells have in common, such as the column."""
    paper: Sequence[float]
    """The paper's value, or those of an order; none if it has curves only."""
    ours: Sequence[Sequence[float]]
    """Our values by seed, of each cell of an order; empty where a cell was not run."""
    holds: bool | None
    """Whether the rule holds; None if a cell was not run."""


@dataclass(frozen=True)
class Judgment:
    """A claim and what our runs say about it."""

    paper: str
    claim: Mapping[str, Any]
    figure: str
    checks: Sequence[Check]
    part: Sequence[str] = ()
    """In which ways the runs are fewer or shorter than the paper's."""

    @property
    def verdict(self) -> str:
        """`yes`, `partly`, `no` or `not run`."""
        known = [check.holds for check in self.checks if check.holds is not None]
        if not known:
            return "not run"
        return "yes" if all(known) else "partly" if any(known) else "no"

    @property
    def reproduced(self) -> str:
        """The verdict, and how much of the claim it covers."""
        known = [check.holds for check in self.checks if check.holds is not None]
        held = f" ({sum(known)} of {len(known)})" if self.verdict == "partly" else ""
        return self.verdict + held + (f", part ({', '.join(self.part)})" if known and self.part else "")

    @property
    def rule(self) -> str:
        """The rule in words."""
        claim = self.claim
        if claim["compare"] == "order":
            return "each larger than the one before" if claim.get("rising") else "each smaller than the one before"
        words = [text.format(self._unit(claim[key])) for key, (text, _) in BOUNDS.items() if key in claim]
        if {"least", "most"} <= claim.keys():
            words = [f"between {claim['least']:g} and {self._unit(claim['most'])}"]
        words += [f"within {self._unit(claim['within'])} of the paper's"] if "within" in claim else []
        return f"{claim['compare']} {' and '.join(words)}".removeprefix("level ")

    def _unit(self, value: float) -> str:
        points = " point" if abs(value) == 1 else " points"
        return f"{value:g}" + (points if self._in_points and value else "")

    @property
    def _in_points(self) -> bool:
        return self.figure in ACCURACIES and self.claim["compare"] != "ratio"

    @property
    def printed(self) -> str:
        """The paper's values."""
        if isinstance(words := self.claim.get("printed"), str):
            return words
        down = -1 if self.claim.get("rising") else 1
        return self._text(
            [(check.words, [[value] for value in check.paper], falls([[value] for value in check.paper], down))
             for check in self.checks if check.paper]
        )  # fmt: skip

    @property
    def ours(self) -> str:
        """Our values."""
        return self._text(
            [(check.words, check.ours, bool(check.holds)) for check in self.checks if any(map(len, check.ours))]
        )

    def _text(self, found: Sequence[tuple[str, Sequence[Sequence[float]], bool]]) -> str:
        """Return values one by one, or a summary if there are many.

        Args:
            found: For each check its words, its values by cell and seed, and whether they are in order.
        """
        if len(found) <= MANY:
            texts = [(words, ", ".join(map(self._one, lists))) for words, lists, _ in found]
            return "; ".join(f"{words}: {text}" if words else text for words, text in texts) or "—"
        if self.claim["compare"] == "order":
            return f"{sum(held for *_, held in found)} of {len(found)} in order"
        means = [mean(lists[0]) for _, lists, _ in found]
        known = [value for value in means if math.isfinite(value)]
        failed = f" ({len(means) - len(known)} diverged)" if len(known) < len(means) else ""
        return " to ".join(self._one([value]) for value in (min(known), max(known))) + failed if known else "diverged"

    def _one(self, values: Sequence[float]) -> str:
        """Format a value with its spread."""
        kind = self.claim["compare"]
        if not values:
            return "not run"
        if any(map(math.isnan, values)):
            return "diverged" if self._in_points else "never"
        if kind == "ratio" and 0 in values:  # a cost over an infinite one
            return f"never in {values.count(0)} of {len(values)} runs" if len(values) > 1 else "never"
        text = shown(values, places=1 if self._in_points else 3 if kind == "difference" else None)
        zero = float(text.split()[0]) == 0 if text[-1].isdigit() else False
        if zero:
            return text.removeprefix("-")
        return f"+{text}" if kind == "difference" and mean(values) > 0 else text


def judgments() -> Iterator[Judgment]:
    """Yield every claim of the papers, judged by the stored runs."""
    known: dict[str, Results | None] = {}
    for paper, group in files.claims().items():
        for claim in group:
            yield judge(paper, claim, known)


def judge(paper: str, claim: Mapping[str, Any], known: dict[str, Results | None] | None = None) -> Judgment:
    """Judge a claim.

    Args:
        paper: The paper's name.
        claim: The claim.
        known: Results by the name of the reproduction; those of other names are read and added.
    """
    known = {} if known is None else known
    name = claim.get("reproduction")
    if name is None:  # nothing covers it
        return Judgment(paper, claim, "", ())
    figure = claim.get("figure") or main_figure(name)
    printed = iter(claim["printed"]) if isinstance(claim.get("printed"), list) else None
    lists = [[_place(name, label) for label in labels] for labels in compared(claim)]
    used: dict[str, list[str]] = {}
    for other, label in itertools.chain(*lists):
        used.setdefault(other, []).append(label)
    known |= {other: read(files.stored(other)) for other in used if other not in known}
    part = [words for other, labels in used.items() if (found := known[other]) is not None
            for words in shortened(other, found, labels)]  # fmt: skip
    checks = []
    for words, places in zip(_words([[label for _, label in places] for places in lists]), lists, strict=True):
        ours = [_values(known[other], label, figure) for other, label in places]
        if None not in ours and len({_share(known[other], *place) for place in places for other in place[:1]}) > 1:
            ours = [None for _ in places]
            part.append("runs of different lengths")
        theirs = [_printed(other, label, figure) for other, label in places]
        given = None if printed is None else next(printed)
        checks.append(_check(claim, words, figure, ours, theirs, given))
    return Judgment(paper, claim, figure, checks, list(dict.fromkeys(part)))


def compared(claim: Mapping[str, Any]) -> list[list[str]]:
    """Return the lists of labels that a claim compares."""
    found = files.paper(claim["reproduction"])
    given = claim["cells"]
    lists = given if isinstance(given[0], list) else [given]
    rows, columns = claim.get("rows", found.get("rows", [""])), claim.get("columns", found.get("columns", [""]))
    filled = [
        [text.format(row=row, column=column) for text in texts]
        for texts in lists
        for row, column in itertools.product(rows, columns)
    ]
    return [list(labels) for labels in dict.fromkeys(map(tuple, filled))]


def main_figure(name: str) -> str:
    """Return the figure that the table of a reproduction shows first."""
    found = files.paper(name)
    figure: str = found.get("figure") or next(iter(found.get("values", {"names": [""]})["names"]))
    return figure


def _check(
    claim: Mapping[str, Any],
    words: str,
    figure: str,
    ours: Sequence[Mapping[int, float] | None],
    theirs: Sequence[float | None],
    given: Any,
) -> Check:
    factor = 1.0 if claim["compare"] == "ratio" else scale(figure)
    cells = [None if each is None else {seed: factor * value for seed, value in each.items()} for each in ours]
    paper = [factor * value for value in theirs if value is not None]
    paper = paper if len(paper) == len(theirs) else []
    if given is not None:
        paper = list(given) if isinstance(given, list) else [given]
    missing = any(each is None for each in cells)
    if claim["compare"] == "order":
        lists = [list((each or {}).values()) for each in cells]
        return Check(words, paper, lists, None if missing else falls(lists, -1 if claim.get("rising") else 1))
    compare = {"level": None, "difference": _minus, "ratio": ratio}[claim["compare"]]
    if compare is not None and given is None:
        paper = [compare(*paper)] if paper else []
    values: list[float] = []
    if not missing:
        first, *second = [each or {} for each in cells]
        values = list(first.values()) if compare is None else paired(first, second[0], compare)
    return Check(words, paper, [values], _within(claim, values, paper) if values else None)


def falls(lists: Sequence[Sequence[float]], sign: int = 1) -> bool:
    """Return whether the means of lists fall from one to the next, or rise if the sign is −1."""
    return all(sign * mean(one) > sign * mean(other) for one, other in itertools.pairwise(lists))


def mean(values: Sequence[float]) -> float:
    """Return the mean of values, one of which may be infinite."""
    return statistics.fmean(values)


def _within(claim: Mapping[str, Any], values: Sequence[float], paper: Sequence[float]) -> bool:
    """Return whether the mean of the values meets all bounds of a claim."""
    held = [test(mean(values), claim[key]) for key, (_, test) in BOUNDS.items() if key in claim]
    held += [abs(mean(values) - paper[0]) <= claim["within"]] if "within" in claim else []
    return all(held)


def _minus(one: float, other: float) -> float:
    """Return a difference; not a number if neither is finite, as for two targets that were not reached."""
    return one - other


def _values(results: Results | None, label: str, figure: str) -> dict[int, float] | None:
    """Return a figure by seed, or None if it is not known: a shorter run may still have reached a target.

    A cell of which all runs diverged has no number.
    """
    if results is None:
        return None
    found = results.values(label, figure)
    if math.inf in found.values() and {"rounds", "virtual_seconds"} & results.changes([label]).keys():
        return None
    if not found and results.diverged(label):
        return {0: math.nan}
    return found or None


def _printed(name: str, label: str, figure: str) -> float | None:
    """Return the paper's figure of a cell; papers print one accuracy, whichever it is."""
    for entry in entries(files.paper(name), Results((), 0.0)):
        if entry.cell == label and (entry.figure == figure or {entry.figure, figure} <= ACCURACIES.keys()):
            return entry.paper
    return None


def _place(name: str, label: str) -> tuple[str, str]:
    other, separator, inner = label.partition("::")
    return (other, inner) if separator else (name, label)


def _share(results: Results | None, name: str, label: str) -> float:
    """Return the share of the file's rounds, or seconds, that the runs of a cell have made."""
    changes = {} if results is None else results.changes([label])
    planned = next(cell.table for cell in files.cells(name) if cell.label == label)
    for key in ("rounds", "virtual_seconds"):
        if key in changes:
            return float(round(changes[key] / planned.get(key, math.inf), 6))
    return 1.0


def _words(lists: Sequence[Sequence[str]]) -> list[str]:
    """Return distinct words for each list of labels: what they have in common, the first or the second label."""
    if len(lists) == 1:
        return [""]
    kinds = [[_shared(labels) for labels in lists], [labels[0] for labels in lists], [labels[-1] for labels in lists]]
    pairs = [" / ".join(labels) for labels in lists]
    return next((words for words in kinds if "" not in words and len(set(words)) == len(words)), pairs)


def _shared(labels: Sequence[str]) -> str:
    """Return the words at the end, or else at the beginning, that labels have in common."""

    def same(lists: Sequence[Sequence[str]]) -> list[str]:
        several = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*lists, strict=False))
        return [column[0] for column in several]

    words = [label.split() for label in labels]
    return " ".join(same([each[::-1] for each in words])[::-1] or same(words))
