"""Gather what the page needs from the run folders of a sweep: `python -m reproductions.collect NAME FOLDER`.

What it took to reach a target is read from the evaluations, so that `--target` can ask for another than the run's own.

Writes `results/NAME.json`: for every finished run its label, seed and figures; the machine that made them, what was set
otherwise than in the file, and the commit at which they are collected: collect before the code changes.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import tomllib
from collections.abc import Iterable
from typing import Any

from offbeat.report.read import metrics
from offbeat.runs import config
from offbeat.runs.folder import STATUS_FILE, SUMMARY, is_finished, read_config, read_status, read_summary, read_sweep
from offbeat.runs.sweep import Sweep

HERE = pathlib.Path(__file__).parent
FIGURES = ("accuracy", "accuracy_last10", "best_accuracy", "virtual_seconds", "bytes_up", "staleness_mean",
           "staleness_max", "rounds", "parameters")  # fmt: skip
REACHED = {"target_seconds": "virtual_seconds", "target_bytes_up": "bytes_up", "target_rounds": "version"}
CURVE = 60  # points of a curve that are kept
SETTABLE = ("rounds", "virtual_seconds", "precision")  # what a part of a table may have otherwise than its file


def collect(name: str, folder: pathlib.Path, target: float | None = None) -> dict[str, Any]:
    runs = read_sweep(folder)
    ended = [run for run in runs if is_finished(folder / run["folder"])]
    diverged = {run["label"]: None for run in runs if _diverged(folder / run["folder"])}
    found = [_run(folder / run["folder"], run["label"], run["seed"], target) for run in ended]
    machines = sorted({run.pop("machine") for run in found})
    seconds = busy([run.pop("span") for run in found])
    return {"commit": _commit(), "machines": machines, "seconds": seconds, "set": _set(name, folder, ended),
            "diverged": list(diverged), "runs": found}  # fmt: skip


def _diverged(folder: pathlib.Path) -> bool:
    status = read_status(folder) if (folder / STATUS_FILE).is_file() else {}
    return status.get("state") == "failed" and "diverged" in status["error"]


def _set(name: str, folder: pathlib.Path, runs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What the runs have otherwise than the file says, all of them the same."""
    planned = {cell.label: config.parse(cell.table) for cell in Sweep.plan(tables(name), [], []).cells}
    changes = []
    for run in runs:
        asked, had = planned[run["label"]], config.parse(read_config(folder / run["folder"]))
        changes.append({key: getattr(had, key) for key in SETTABLE if getattr(had, key) != getattr(asked, key)})
    if any(change != changes[0] for change in changes):
        raise SystemExit(f"the runs of {folder} do not belong together: {changes}")
    return changes[0] if changes else {}


def tables(name: str) -> dict[str, Any]:
    return tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))


def busy(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds in which at least one run was at work: those of a pool are at work together."""
    total, until = 0.0, float("-inf")
    for begun, ended in sorted(spans):
        total += max(0.0, ended - max(begun, until))
        until = max(until, ended)
    return total


def _run(folder: pathlib.Path, label: str, seed: int, target: float | None) -> dict[str, Any]:
    status, summary = read_status(folder), read_summary(folder)
    lines = metrics(folder)
    target = summary["target"] if target is None else target
    there = next((line for line in lines if target is not None and line["accuracy"] >= target), {})
    kept = lines[:: max(1, -(-len(lines) // CURVE))]
    curve = [[line["version"], round(line["virtual_seconds"], 2), round(line["accuracy"], 4)] for line in kept]
    figures = {name: summary[name] for name in FIGURES} | {name: there.get(of) for name, of in REACHED.items()}
    machine = f"{status['gpu'] or str(status['cpus']) + ' cores, ' + status['machine']}, torch {status['torch']}"
    ended = (folder / SUMMARY).stat().st_mtime
    beside = {"machine": machine, "span": (ended - summary["wall_seconds"], ended)}
    return {"label": label, "seed": seed, **figures, "target": target, "curve": curve, **beside}


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=True
    ).stdout.strip()


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("name")
    words.add_argument("folder", type=pathlib.Path)
    words.add_argument("--target", type=float)
    told = words.parse_args()
    out = HERE / "results" / f"{told.name}.json"
    out.parent.mkdir(exist_ok=True)
    found = collect(told.name, told.folder, told.target)
    lines = ",\n  ".join(json.dumps(run, ensure_ascii=False) for run in found.pop("runs"))
    text = json.dumps(found, ensure_ascii=False)
    out.write_text(f'{text[:-1]}, "runs": [\n  {lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
