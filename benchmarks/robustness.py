"""Generate docs/robustness.md from the runs of `offbeat sweep benchmarks/robustness.toml`.

`python -m benchmarks.robustness FOLDER` collects the figures of a folder in `robustness.json` first; without a folder
the page is generated from that file. All text is here and in `robustness.toml`.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from offbeat.reproductions.results import busy
from offbeat.runs.folder import (
    STATUS,
    SUMMARY,
    is_finished,
    read_setting,
    read_status,
    read_summary,
    read_sweep,
    read_updates,
)

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent / "docs" / "robustness.md"
TITLES = {"attack": "attack", "rule": "defense"}  # of the axes
SHOWN = {"refused": "rejected", "shortened": "norm-clipped"}  # labels that the page words differently
STUDY, RESULTS = HERE / "robustness.toml", HERE / "robustness.json"
NONE = "none"  # label of the runs without an attack
NEAR = 5.0  # points of accuracy that a defense may lose

HEAD = """\
# Attacks and defenses

{setting}
All defenses face the same attackers, delays and batches. Figures are accuracies in percent after {rounds} steps, the
mean of {seeds} seeds; guessing gives 10 %. No defense knows the number of attackers: each has one configuration for all
shares.

<!-- not run: takes minutes and needs MNIST -->
```bash
offbeat sweep benchmarks/robustness.toml --out runs/robustness
python -m benchmarks.robustness runs/robustness # generates this page
```

Commit {commit}, {machine}: {runs} runs in {minutes:.0f} minutes.

## Summary

The largest share of attackers with which a defense stays within {near:g} points of the plain mean without attackers.

{short}

The [attacks](#attacks) and [defenses](#defenses) are listed below; [robust aggregation](howto/robust.md) explains the
aggregators.

* Long updates defeat the plain mean: noise, −10·Δ, a large ε. Reject updates that are much longer than any honest one
  with `validation.max_norm` (here slightly above the longest honest update); a clipped update still counts.
* Short malicious updates pass every bound on the norm. A flipped sign or a small ε slows the plain mean down but does
  not stop it. A small ε is worse for defenses that select updates: attackers that all send the same vector are close to
  each other, so Krum selects them, and where clients are non-IID a median moves toward them.
* The share of attackers is an average over steps.
  {crowds}
  A median tolerates fewer than half, a trimmed mean as many as it trims at either end; with 30 % both encounter steps
  with more, and one such step is enough for long noise.
* Robust aggregators cost accuracy on non-IID data even without attackers: a median, and Krum most of all, discard what
  only some clients know.

## Attacks

{attacks}

## Defenses

{rules}

## All figures

Bold: within {near:g} points of the plain mean without attackers.

{long}
"""


def collect(folder: pathlib.Path) -> dict[str, Any]:
    """Collect the final accuracy of every run, or None for a run that diverged."""
    runs = read_sweep(folder)
    found: dict[str, list[float | None]] = {}
    spans = []
    for run in runs:
        place = folder / run["folder"]
        summary = read_summary(place) if is_finished(place) else {}
        accuracy = summary.get("accuracy")
        found.setdefault(run["label"], []).append(None if accuracy is None else round(100 * accuracy, 2))
        ended = (place / SUMMARY).stat().st_mtime if summary else 0.0
        spans.append((ended - summary.get("wall_seconds", 0.0), ended))
    status = read_status(folder / runs[0]["folder"])
    git = ["git", "rev-parse", "--short", "HEAD"]
    return {
        "commit": subprocess.run(git, cwd=HERE, capture_output=True, text=True, check=True).stdout.strip(),
        "machine": f"{status['gpu'] or str(status['cpus']) + ' cores, ' + status['machine']}, torch {status['torch']}",
        "seconds": busy(spans),
        "crowds": _crowds(folder, runs),
        "accuracy": found,
    }


def _crowds(folder: pathlib.Path, runs: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the mean and the largest number of attackers' updates in a step, for each share."""
    study = tomllib.loads(STUDY.read_text(encoding="utf-8"))
    rule, attack, buffer = labels(study, "rule")[0], _attacks(study)[0], study["scheduler"]["buffer"]
    found: dict[str, list[float]] = {}
    for share in labels(study, "share"):
        steps = []
        for run in runs:
            if run["label"] == f"{rule} {share} {attack}":
                place = folder / run["folder"]
                who = read_setting(place)["attackers"]
                log = read_updates(place)
                hostile = np.isin(log["client"][log["status"] == STATUS.index("aggregated")], who)
                steps.append(hostile[: len(hostile) // buffer * buffer].reshape(-1, buffer).sum(axis=1))
        if steps:
            crowd = np.concatenate(steps)
            found[share] = [round(float(crowd.mean()), 1), int(crowd.max())]
    return found


def page(found: Mapping[str, Any]) -> str:
    """Return the page."""
    study = tomllib.loads(STUDY.read_text(encoding="utf-8"))
    accuracy = found["accuracy"]
    data, scheduler = study["data"], study["scheduler"]
    return HEAD.format(
        setting=f"Logistic regression on MNIST, {data['clients']} clients, Dirichlet {data['partition']['alpha']:g}, "
        f"{scheduler['concurrency']} of them training at a time, a step at every {scheduler['buffer']}th arrival.",
        rounds=study["rounds"], seeds=len(study["seeds"]), commit=found["commit"], machine=found["machine"],
        runs=sum(map(len, accuracy.values())), minutes=found["seconds"] / 60, near=NEAR, short=_short(study, accuracy),
        crowds=_counted(found["crowds"], scheduler["buffer"]),
        attacks=_described(study, "attack", "environment", "attack"), rules=_described(study, "rule"),
        long=_long(study, accuracy),
    )  # fmt: skip


def _counted(crowds: Mapping[str, Sequence[float]], buffer: int) -> str:
    counts = ", ".join(f"{mean:g} and {most:g} with {share}" for share, (mean, most) in crowds.items())
    return f"Of the {buffer} updates of a step, the mean and the largest number from attackers are {counts}."


def labels(study: Mapping[str, Any], axis: str) -> list[str]:
    """Return the labels of an axis."""
    return [each["label"] for each in study["axes"][axis]]


def mean(accuracy: Mapping[str, Sequence[float | None]], rule: str, share: str, attack: str) -> float | None:
    """Return the mean over the seeds, or None where a run diverged."""
    values = [value for value in accuracy[f"{rule} {share} {attack}"] if value is not None]
    return statistics.fmean(values) if len(values) == len(accuracy[f"{rule} {share} {attack}"]) else None


def survives(study: Mapping[str, Any], accuracy: Mapping[str, Any], value: float | None) -> bool:
    """Return whether an accuracy is close to that of the plain mean without attackers."""
    rules, shares = labels(study, "rule"), labels(study, "share")
    baseline = mean(accuracy, rules[0], shares[0], NONE)
    return value is not None and baseline is not None and value >= baseline - NEAR


def _short(study: Mapping[str, Any], accuracy: Mapping[str, Any]) -> str:
    rules, shares = labels(study, "rule"), labels(study, "share")

    def most(rule: str, attack: str) -> str:
        kept = "–"
        for share in shares:
            if not survives(study, accuracy, mean(accuracy, rule, share, attack)):
                break
            kept = share
        return kept

    rows = [[attack, *(most(rule, attack) for rule in rules)] for attack in _attacks(study)]
    return _table(["attack", *map(_shown, rules)], rows)


def _long(study: Mapping[str, Any], accuracy: Mapping[str, Any]) -> str:
    rules, shares = labels(study, "rule"), labels(study, "share")

    def cell(rule: str, share: str, attack: str) -> str:
        value = mean(accuracy, rule, share, attack)
        text = "diverged" if value is None else f"{value:.1f}"
        return f"**{text}**" if survives(study, accuracy, value) else text

    rows = [[NONE, "", *(cell(rule, shares[0], NONE) for rule in rules)]]
    rows += [
        [attack, share, *(cell(rule, share, attack) for rule in rules)]
        for attack in _attacks(study)
        for share in shares
    ]
    return _table(["attack", "share", *map(_shown, rules)], rows)


def _described(study: Mapping[str, Any], axis: str, *inside: str) -> str:
    """Return a table of the settings of each entry of an axis."""
    rows = []
    for entry in study["axes"][axis]:
        settings: Any = {name: value for name, value in entry.items() if name != "label"}
        for name in inside:
            settings = settings[name]
        if entry["label"] != NONE:
            rows.append([_shown(entry["label"]), ", ".join(_words(settings)) or "none"])
    return _table([TITLES[axis], "settings" if not inside else f"`{'.'.join(inside)}`"], rows)


def _words(table: Mapping[str, Any], path: str = "") -> list[str]:
    found: list[str] = []
    for name, value in table.items():
        if isinstance(value, dict):
            found += _words(value, f"{path}{name}.")
        else:
            found.append(f"`{path}{name} = {json.dumps(value)}`")
    return found


def _shown(label: str) -> str:
    return SHOWN.get(label, label)


def _attacks(study: Mapping[str, Any]) -> list[str]:
    return [label for label in labels(study, "attack") if label != NONE]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def main() -> None:
    """Collect the figures of a folder, if one is given, and write the page."""
    if len(sys.argv) > 1:
        found = collect(pathlib.Path(sys.argv[1]))
        RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
