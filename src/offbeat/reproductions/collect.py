"""Gather the runs of a reproduction from the folders of sweeps."""

from __future__ import annotations

import pathlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offbeat.errors import OffbeatError, nearest
from offbeat.report.read import metrics
from offbeat.reproductions import files
from offbeat.reproductions.results import Results, Run, merged
from offbeat.runs import config
from offbeat.runs.config import Table
from offbeat.runs.folder import (
    CONFIG,
    STATUS_FILE,
    SUMMARY,
    is_finished,
    read_config,
    read_status,
    read_summary,
    read_sweep,
)

FIGURES = ("accuracy", "accuracy_last10", "best_accuracy", "loss", "train_loss", "virtual_seconds", "bytes_up",
           "bytes_down", "staleness_mean", "staleness_max", "rounds", "parameters", "wall_seconds")  # fmt: skip
REACHED = {"target_seconds": "virtual_seconds", "target_bytes_up": "bytes_up", "target_rounds": "version"}
CURVE = 60  # points of a curve that are kept
DIVERGED = ("diverged", "test loss is")  # in the error of a run: found by a client, or by an evaluation
CHOICES = {"seed", "device", "executor", "compile"}  # settings in which the runs of a cell may differ


def collect(name: str, folders: Sequence[pathlib.Path], commit: str = "", target: float | None = None) -> Results:
    """Return the finished and diverged runs of a reproduction.

    Args:
        name: The reproduction.
        folders: Folders of sweeps, each with other cells or seeds.
        commit: The commit at which the runs are collected.
        target: The accuracy of `target_seconds` and the like; by default that of the runs.

    Raises:
        OffbeatError: A run is in two folders, is not in the file, or differs in its settings from the others of its
            label.
    """
    found: dict[tuple[str, int], tuple[pathlib.Path, Run]] = {}
    targets = files.targets(name)
    for folder in folders:
        for listed in read_sweep(folder):
            place, key = folder / listed["folder"], (listed["label"], listed["seed"])
            run = _run(name, place, *key, target, targets)
            if run is not None and key in found:
                raise OffbeatError(f"{listed['label']!r}, seed {listed['seed']}, is in {found[key][0]} and in {place}")
            if run is not None:
                found[key] = place, {**run, "commit": commit}
    return merged(name, Results.of([run for _, run in found.values()]))


def _run(
    name: str, folder: pathlib.Path, label: str, seed: int, target: float | None, targets: Sequence[str]
) -> dict[str, Any] | None:
    """Return the figures of a run, or None if it has not ended."""
    status = read_status(folder) if (folder / STATUS_FILE).is_file() else {}
    failed = status.get("state") == "failed" and any(words in status["error"] for words in DIVERGED)
    if not failed and not is_finished(folder):
        return None
    machine = f"{status['gpu'] or str(status['cpus']) + ' cores, ' + status['machine']}, torch {status['torch']}"
    run: dict[str, Any] = {"label": label, "seed": seed, "machine": machine}
    if changes := _changes(name, label, read_config(folder)):
        run["set"] = changes
    if failed:
        begun, ended = ((folder / file).stat().st_mtime for file in (CONFIG, STATUS_FILE))
        return run | {"span": [round(begun, 1), round(ended, 1)], "diverged": True}
    summary, lines = read_summary(folder), metrics(folder)
    ended = (folder / SUMMARY).stat().st_mtime
    target = summary["target"] if target is None else target
    return run | {
        "span": [round(ended - summary["wall_seconds"], 1), round(ended, 1)],
        **{figure: summary.get(figure) for figure in FIGURES},
        "target": target,
        **_reached(lines, target),
        "reached": {at: _reached(lines, float(at)) for at in targets},
        "curve": _curve(lines),
    }


def _reached(lines: Sequence[Mapping[str, Any]], target: float | None) -> dict[str, float | None]:
    """Return what it took to reach an accuracy, read from the evaluations."""
    there = next((line for line in lines if target is not None and line["accuracy"] >= target), {})
    return {name: there.get(of) for name, of in REACHED.items()}


def _curve(lines: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Return round, virtual time and accuracy at evenly spaced evaluations, the first and the last among them."""
    many = len(lines) - 1
    places = range(len(lines)) if many < CURVE else [round(point * many / (CURVE - 1)) for point in range(CURVE)]
    return [
        [lines[at]["version"], round(lines[at]["virtual_seconds"], 2), round(lines[at]["accuracy"], 4)] for at in places
    ]


def _changes(name: str, label: str, had: Table) -> dict[str, Any]:
    """Return the settings of a run that are not those of the file, by dotted key."""
    planned = {cell.label: cell.table for cell in files.cells(name)}
    if label not in planned:
        raise OffbeatError(f"{label!r} is not a cell of {name}.toml; {nearest(label, planned)}")
    asked, got = (dict(_flat(tomllib.loads(config.dump(config.parse(each))))) for each in (planned[label], had))
    return {key: got.get(key) for key in sorted(asked.keys() | got.keys()) if got.get(key) != asked.get(key)}


def _flat(table: Table, above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        elif above or key not in CHOICES:
            yield above + key, value
