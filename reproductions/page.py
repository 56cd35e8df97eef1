"""Generate docs/reproductions.md and its figures: `python -m reproductions.page`.

The page has the papers' claims, each judged by our runs (claims.toml, see claims.py), the tables (paper.toml and
results/), and what the papers contain that was not reproduced (contents.toml).
"""

from __future__ import annotations

import math
import pathlib
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from reproductions.claims import Judgment, judgments
from reproductions.figures import picture

from offbeat.reproductions import files
from offbeat.reproductions.comparison import (
    ACCURACIES,
    Entry,
    compare_cell,
    entries,
    heading,
    ours,
    printed,
    rounds_to,
    shown,
    tables,
)
from offbeat.reproductions.results import Results, read, shortened

DOCS = pathlib.Path(__file__).parents[1] / "docs"
PAGE = DOCS / "reproductions.md"
IMAGES = DOCS / "images"

HEAD = """\
# Reproducing the papers

`offbeat reproduce NAME` runs one of the tables below and compares it with the paper; the same command again resumes it.
[How to](howto/reproduce.md) shows its options. `python -m reproductions.page` generates this page from the runs
(`python -m reproductions.collect`); no figure or verdict on it is typed.

## What the papers claim

Ours is the mean ± standard deviation over the seeds. Each claim states the rule by which it is judged, in points of
accuracy unless it says otherwise: **yes** if it holds for all its cells, **partly** for some of them. Runs with fewer
rounds than the paper's are marked as a part.
"""
STATISTICS = {"final": "final accuracy", "last 10": "mean of the last ten evaluations", "best": "best accuracy"}
TABLES = """\
## The tables

A cell is **paper / ours**.
"""


def page() -> str:
    """Return the page."""
    sections = [_section(*found) for found in stored()]
    return "\n".join([HEAD, _claims(list(judgments())), TABLES, *sections, _missing()])


def stored() -> Iterator[tuple[str, dict[str, Any], Results]]:
    """Yield the name, the paper's figures and our runs of each reproduction with results."""
    for name, paper in files.papers().items():
        if (results := read(files.stored(name))) is not None:
            yield name, paper, results


# Claims ---------------------------------------------------------------------------------------------------------------


def _claims(found: Sequence[Judgment]) -> str:
    counts = Counter(judgment.verdict for judgment in found)
    words = {"yes": "are reproduced", "partly": "in part", "no": "are not", "not run": "were not run"}
    total = ", ".join(f"{counts[verdict]} {text}" for verdict, text in words.items() if counts[verdict])
    lines = ["| claim | paper | ours | reproduced | why |", "|---|---|---|---|---|"]
    papers = files.contents()
    for judgment in found:
        claim = judgment.claim
        name = claim.get("reproduction")
        rule = f" *{judgment.rule}*" if judgment.checks else ""
        text = f"[{claim['claim']}](#{name})" if _linked(name) else claim["claim"]
        values = [text.replace("; ", "<br>") for text in (judgment.printed, judgment.ours)]
        cells = [
            f"**{papers[judgment.paper]['short']}.** {text}{rule}",
            *values,
            judgment.reproduced,
            claim.get("why", ""),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return f"Of {len(found)} claims, {total}.\n\n" + "\n".join(lines) + "\n"


def _linked(name: str | None) -> bool:
    return name is not None and files.stored(name).is_file()


# Tables ---------------------------------------------------------------------------------------------------------------


def _section(name: str, paper: Mapping[str, Any], results: Results) -> str:
    parts = [f'<a id="{name}"></a>\n', f"### {paper['title']}\n", f"`offbeat reproduce {name}{_words(results)}`\n"]
    seeds = f"{results.seeds} seeds" if results.seeds > 1 else "one seed"
    less = shortened(name, results)
    made = f"{len(results.runs)} runs, {seeds}, {_duration(results.seconds)} on {'; '.join(results.machines)}"
    partial = f"**Partial: {', '.join(less)}.** " if less else ""
    parts.append(f"{partial}{made}, collected at commit {', '.join(results.commits)}.\n")
    parts += _tables(paper, results)
    if "ratios" in paper:
        parts.append(_ratios(paper, results))
    if "values" in paper:
        parts.append(_values(paper["values"], results))
    whole = not any("rounds" in words or words.endswith(" s") for words in less)
    parts += _statistics(paper, results, whole)
    parts += [paper["notes"].strip() + "\n"] if "notes" in paper else []
    parts += [f"![{paper['title']}](images/{name}.png)\n"]
    return "\n".join(parts)


def _words(results: Results) -> str:
    """Return the options with which all runs were made."""
    changes = [run.get("set", {}) for run in results.runs]
    shared = {key: value for key, value in changes[0].items() if all(each.get(key) == value for each in changes)}
    return "".join(f" --set {key}={value}" for key, value in shared.items())


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _cell(entry: Entry) -> str:
    return ours(entry) if entry.paper is None else f"{printed(entry)} / {ours(entry)}"


def _tables(paper: Mapping[str, Any], results: Results) -> Iterator[str]:
    """Yield the tables in rows and columns: one per figure, and the rounds to some accuracies."""
    found = {(entry.cell, entry.figure): entry for entry in entries({**paper, "values": {}, "ratios": {}}, results)}
    for figure, rows in tables(paper).items():
        cells = {row: [found[f"{row} {column}", figure] for column in paper["columns"]] for row in rows}
        yield f"{_statistic(figure)}\n\n{_grid(paper['columns'], cells)}"
    if accuracies := rounds_to(paper):
        labels = [label for label in paper["rounds_to"] if label != "accuracies"]
        yield _grid(map(heading, accuracies), {label: [found[label, each] for each in accuracies] for label in labels})


def _grid(columns: Iterable[str], cells: Mapping[str, Sequence[Entry]]) -> str:
    heads = list(columns)
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (1 + len(heads)) + "|"]
    lines += [f"| {row} | " + " | ".join(map(_cell, entries)) + " |" for row, entries in cells.items()]
    return "\n".join(lines) + "\n"


def _statistic(figure: str) -> str:
    words = {"accuracy": "Accuracy (%) of the last evaluation.", "best_accuracy": "Best accuracy (%) of a run.",
             "accuracy_last10": "Accuracy (%), mean of the last ten evaluations."}  # fmt: skip
    return words.get(figure, f"{heading(figure).capitalize()} to the target.")


def _values(values: Mapping[str, Any], results: Results) -> str:
    """Return a table with several figures per variant."""
    names = values["names"]
    cells = {
        label: [compare_cell(results, label, *pair) for pair in zip(names, known, strict=True)]
        for label, known in values.items()
        if label != "names"
    }
    return _grid(map(heading, names), cells)


def _ratios(paper: Mapping[str, Any], results: Results) -> str:
    """Return a table of the ratios of two variants, seed by seed."""
    one, other = paper["ratios"]["of"]
    lines = [f"| {one} / {other} | paper | ours | {one} | {other} |", "|---|---|---|---|---|"]
    for entry in entries({"ratios": paper["ratios"]}, results):
        each = [shown(list(results.values(label, entry.figure).values())) for label in (one, other)]
        lines.append(f"| {heading(entry.figure)} | {entry.paper:.3g} | {' | '.join([ours(entry), *each])} |")
    return "\n".join(lines) + "\n"


def _statistics(paper: Mapping[str, Any], results: Results, whole: bool) -> Iterator[str]:
    """Yield the differences from the paper by statistic, and a table with all statistics of every cell.

    Args:
        paper: The paper's figures.
        results: Our runs.
        whole: Whether they have the paper's rounds; if not, their differences say nothing.
    """
    cells = [entry for entry in entries(paper, results) if entry.figure in ACCURACIES and entry.ours]
    cells = list({entry.cell: entry for entry in cells}.values())
    if not cells:
        return
    other = {
        figure: [compare_cell(results, cell.cell, figure, _number(cell)) for cell in cells] for figure in ACCURACIES
    }
    gaps = {figure: [gap for each in found if (gap := each.difference) is not None] for figure, found in other.items()}
    if whole and any(gaps.values()):
        means = ", ".join(_gap(words, gaps[figure]) for figure, words in ACCURACIES.items() if gaps[figure])
        yield f"Ours minus the paper's, on average: {means}.\n"
    lines = ["| | paper | final | last 10 | best |", "|---|---|---|---|---|"]
    for place, cell in enumerate(cells):
        known = [ours(other[figure][place]) for figure in ACCURACIES]
        lines.append(f"| {cell.cell} | {printed(cell)} | {' | '.join(known)} |")
    table = "\n".join(lines)
    if paper.get("figure", "accuracy") != "accuracy":  # the choice matters, so the table shows all
        yield f"Final accuracy, mean of the last ten evaluations and best accuracy:\n\n{table}\n"
    else:
        yield f'<details markdown="1"><summary>Final, last ten and best accuracy</summary>\n\n{table}\n\n</details>\n'


def _gap(words: str, gaps: Sequence[float]) -> str:
    near = sum(abs(gap) <= 1 for gap in gaps)
    return f"{statistics.fmean(gaps):+.2f} with the {STATISTICS[words]} ({near} of {len(gaps)} cells within a point)"


def _number(entry: Entry) -> float:
    return math.nan if entry.paper is None else entry.paper


# What is missing ------------------------------------------------------------------------------------------------------


def _missing() -> str:
    """Return the tables and figures of the papers that are not reproduced, or only in part."""
    parts = ["## Not reproduced, not run\n"]
    for paper in files.contents().values():
        lines = [f"| {item['name']} | {item['shows']} | {words} |" for item in paper["items"] if (words := state(item))]
        if lines:
            parts.append(f"{paper['title']}\n\n| | shows | state |\n|---|---|---|\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def state(item: Mapping[str, Any]) -> str:
    """Return why an item of a paper is not reproduced, or an empty text if it is, or contains no results."""
    words = [item["why"]] if "why" in item else []
    for name in item.get("reproductions", []):
        results = read(files.stored(name))
        if results is None:
            words.append(f"Not run: `offbeat reproduce {name}`.")
        elif less := shortened(name, results):
            words.append(f"[A part](#{name}): {', '.join(less)}.")
    return " ".join(words)


def main() -> None:
    """Write the page and its figures."""
    PAGE.write_text(page(), encoding="utf-8")
    for name, paper, results in stored():
        picture(paper, results).savefig(IMAGES / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
