"""Make docs/robustness.md of what `offbeat sweep benchmarks/robustness.toml` has left in a folder:
`python -m benchmarks.robustness FOLDER`, or without a folder of `robustness.json`, which keeps the figures.

Nothing on the page is typed by hand but what stands here and in `robustness.toml`.
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
from reproductions.collect import busy

from offbeat.runs.folder import STATUS

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent / "docs" / "robustness.md"
STUDY, RESULTS = HERE / "robustness.toml", HERE / "robustness.json"
NONE = "none"  # the attack that is none
NEAR = 5.0  # points that a rule may lose

HEAD = """\
# Which rule survives which attack

{setting}
All rules meet the same attackers, delays and batches. A figure is the accuracy in per cent after {rounds} steps, the
mean of {seeds} seeds; 10 % is what guessing gets. No rule is told how many attack: each is set up once, for all shares.

<!-- not run: takes minutes and needs MNIST -->
```bash
offbeat sweep benchmarks/robustness.toml --out runs/robustness
python -m benchmarks.robustness runs/robustness # makes this page
```

Commit {commit}, {machine}: {runs} runs in {minutes:.0f} minutes.

## In short

The largest share of attackers with which a rule stays within {near:g} points of the plain mean without any.

{short}

[Attacks](#attacks) and [rules](#rules) are set out below; [what the rules do](howto/robust.md) has a page of its own.

* Long updates defeat the plain mean: noise, −10·Δ, a large ε. Reject updates that are much longer than any honest one
  with `validation.max_norm` (here a little above the longest honest update); a clipped update still counts.
* Short lies pass every bound on the length. A reversed sign or a small ε slows the plain mean down and does not stop
  it. A small ε is worse for rules that choose: attackers who all send the same are near to each other, so Krum believes
  them, and where clients differ a median moves towards them.
* A share is a mean.
  {crowds}
  A median holds against fewer than half, a trimmed mean against as many as it leaves out at either end; with 30 % both
  meet steps with more, and one such step is enough for noise that is long.
* Robust rules cost accuracy where clients differ, also without attackers: a median, and Krum above all, leave out what
  only some clients know.

## Attacks

{attacks}

## Rules

{rules}

## All figures

Bold: within {near:g} points of the plain mean without attackers.

{long}
"""


def collect(folder: pathlib.Path) -> dict[str, Any]:
    """The final accuracy of every run; None of one that diverged."""
    runs = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))["runs"]
    found: dict[str, list[float | None]] = {}
    spans = []
    for run in runs:
        file = folder / run["folder"] / "summary.json"
        summary = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        accuracy = summary.get("accuracy")
        found.setdefault(run["label"], []).append(None if accuracy is None else round(100 * accuracy, 2))
        ended = file.stat().st_mtime if summary else 0.0
        spans.append((ended - summary.get("wall_seconds", 0.0), ended))
    status = json.loads((folder / runs[0]["folder"] / "status.json").read_text(encoding="utf-8"))
    git = ["git", "rev-parse", "--short", "HEAD"]
    return {
        "commit": subprocess.run(git, cwd=HERE, capture_output=True, text=True, check=True).stdout.strip(),
        "machine": f"{status['gpu'] or str(status['cpus']) + ' cores, ' + status['machine']}, torch {status['torch']}",
        "seconds": busy(spans),
        "crowds": _crowds(folder, runs),
        "accuracy": found,
    }


def _crowds(folder: pathlib.Path, runs: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """How many of a step's updates are attackers', in the mean and at most, for each share."""
    study = tomllib.loads(STUDY.read_text(encoding="utf-8"))
    rule, attack, buffer = labels(study, "rule")[0], _attacks(study)[0], study["scheduler"]["buffer"]
    found: dict[str, list[float]] = {}
    for share in labels(study, "share"):
        steps = []
        for run in runs:
            if run["label"] == f"{rule} {share} {attack}":
                place = folder / run["folder"]
                who = json.loads((place / "setting.json").read_text(encoding="utf-8"))["attackers"]
                log = np.load(place / "updates.npy")
                hostile = np.isin(log["client"][log["status"] == STATUS.index("aggregated")], who)
                steps.append(hostile[: len(hostile) // buffer * buffer].reshape(-1, buffer).sum(axis=1))
        if steps:
            crowd = np.concatenate(steps)
            found[share] = [round(float(crowd.mean()), 1), int(crowd.max())]
    return found


def page(found: Mapping[str, Any]) -> str:
    study = tomllib.loads(STUDY.read_text(encoding="utf-8"))
    accuracy = found["accuracy"]
    data, scheduler = study["data"], study["scheduler"]
    return HEAD.format(
        setting=f"Logistic regression on MNIST, {data['clients']} clients, Dirichlet {data['partition']['alpha']:g}, "
        f"{scheduler['concurrency']} of them busy, a step at every {scheduler['buffer']}th arrival.",
        rounds=study["rounds"], seeds=len(study["seeds"]), commit=found["commit"], machine=found["machine"],
        runs=sum(map(len, accuracy.values())), minutes=found["seconds"] / 60, near=NEAR, short=_short(study, accuracy),
        crowds=_counted(found["crowds"], scheduler["buffer"]),
        attacks=_described(study, "attack", "environment", "attack"), rules=_described(study, "rule"),
        long=_long(study, accuracy),
    )  # fmt: skip


def _counted(crowds: Mapping[str, Sequence[float]], buffer: int) -> str:
    told = ", ".join(f"{mean:g} and {most:g} with {share}" for share, (mean, most) in crowds.items())
    return f"Of a step's {buffer} updates so many are attackers', in the mean and at most: {told}."


def labels(study: Mapping[str, Any], axis: str) -> list[str]:
    return [each["label"] for each in study["axes"][axis]]


def mean(accuracy: Mapping[str, Sequence[float | None]], rule: str, share: str, attack: str) -> float | None:
    """Of the seeds; None where a run of them diverged."""
    values = [value for value in accuracy[f"{rule} {share} {attack}"] if value is not None]
    return statistics.fmean(values) if len(values) == len(accuracy[f"{rule} {share} {attack}"]) else None


def survives(study: Mapping[str, Any], accuracy: Mapping[str, Any], value: float | None) -> bool:
    rules, shares = labels(study, "rule"), labels(study, "share")
    unharmed = mean(accuracy, rules[0], shares[0], NONE)
    return value is not None and unharmed is not None and value >= unharmed - NEAR


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
    return _table(["", *rules], rows)


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
    return _table(["attack", "share", *rules], rows)


def _described(study: Mapping[str, Any], axis: str, *inside: str) -> str:
    """What each entry of an axis sets, as a TOML says it."""
    rows = []
    for entry in study["axes"][axis]:
        told: Any = {name: value for name, value in entry.items() if name != "label"}
        for name in inside:
            told = told[name]
        if entry["label"] != NONE:
            rows.append([entry["label"], ", ".join(_words(told)) or "nothing"])
    return _table([axis, "what it sets" if not inside else f"`{'.'.join(inside)}`"], rows)


def _words(table: Mapping[str, Any], path: str = "") -> list[str]:
    found: list[str] = []
    for name, value in table.items():
        if isinstance(value, dict):
            found += _words(value, f"{path}{name}.")
        else:
            found.append(f"`{path}{name} = {json.dumps(value)}`")
    return found


def _attacks(study: Mapping[str, Any]) -> list[str]:
    return [label for label in labels(study, "attack") if label != NONE]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def main() -> None:
    if len(sys.argv) > 1:
        found = collect(pathlib.Path(sys.argv[1]))
        RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
