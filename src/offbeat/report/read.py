"""Run folders as records: complete, half-written, broken or hostile. Nothing that a folder contains raises an error.

`offbeat.runs.folder` reads the files; this module decides what they mean.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import RunFolderError
from offbeat.metric_info import ACCURACY, LOSS, MetricInfo
from offbeat.runs.folder import (
    CONFIG,
    METRICS,
    SETTING,
    STATUS,
    UPDATE,
    UnreadableFileError,
    UpdateRows,
    check_updates,
    in_use,
    is_run,
    iter_metrics,
    read_config,
    read_setting,
    read_status,
    read_summary,
    read_sweep,
    read_text,
    read_updates,
)

T = TypeVar("T")

DEPTH = 4  # levels of folders that are searched for runs
BROKEN = "broken"
MAX_CLIENTS = 10**8
MAX_LABEL = 300  # characters
REQUIRED = ("version", "virtual_seconds", "bytes_up")  # numbers that every evaluation has, next to the main metric
MAX_NAME = 60  # characters of a metric's name


@dataclass(frozen=True)
class Record:
    """The content of one run folder."""

    path: pathlib.Path
    label: str
    """Name of the experiment; its seeds share it."""
    seed: int | None = None
    state: str = BROKEN
    """running, finished, interrupted, failed, killed (marked as running, but no process holds the lock) or broken."""
    problem: str | None = None
    """Why the folder is broken, or the error of a failed run."""
    config: Mapping[str, Any] = field(default_factory=dict)
    config_text: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    setting: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, Any]] = ()

    @property
    def name(self) -> str:
        """The name of the folder, safe to display."""
        return clean(self.path.name)

    @property
    def task_metrics(self) -> list[MetricInfo]:
        """The metrics of the task, the main one first and the loss last."""
        return [MetricInfo(**entry) for entry in self.setting.get("metrics", ())] or [ACCURACY, LOSS]

    @property
    def metric(self) -> MetricInfo:
        """The main metric, which tables and curves show first."""
        return self.task_metrics[0]

    @property
    def target(self) -> float | None:
        """The target of the main metric, if the experiment has one."""
        evaluation = self.config.get("evaluation")
        target: Any = evaluation.get("target") if isinstance(evaluation, Mapping) else None
        if isinstance(target, Mapping):
            target = target.get(self.metric.name)
        return self.metric.target(float(target)) if is_number(target) else None

    @property
    def has_cache(self) -> bool:
        """Whether the algorithm caches updates."""
        algorithm = self.config.get("algorithm")
        return isinstance(algorithm, Mapping) and "cache" in algorithm

    @property
    def clients(self) -> int:
        """The number of clients, or 0 if only the update log could tell."""
        for known in (self.summary.get("clients"), self.setting.get("clients")):
            if isinstance(known, int) and 0 < known <= MAX_CLIENTS:
                return known
        return 0

    @property
    def sizes(self) -> NDArray[np.int64] | None:
        """The number of examples per client, if the run recorded it."""
        sizes = self.setting.get("sizes")
        return np.array(sizes, dtype=np.int64) if sizes else None

    def log(self) -> UpdateRows:
        """Return the sound rows of the update log; no rows if it cannot be read."""
        try:
            log = read_updates(self.path, any_status=True)
        except UnreadableFileError:
            return np.zeros(0, UPDATE)
        return sound(log, self.clients)


def sound(log: UpdateRows, clients: int) -> UpdateRows:
    """Return the rows of an update log whose values are possible.

    Args:
        log: The log.
        clients: The number of clients, or 0 if it is not known.
    """
    good = np.isfinite(log["sent"]) & np.isfinite(log["time"]) & (log["sent"] >= 0) & (log["time"] >= log["sent"])
    good &= (log["client"] >= 0) & (log["client"] < (clients or MAX_CLIENTS)) & (log["staleness"] >= 0)
    return np.asarray(log[good & (log["version"] >= 0) & (log["status"] < len(STATUS))])


def find(root: pathlib.Path, depth: int = DEPTH) -> Iterator[pathlib.Path]:
    """Yield the run folders at or under a folder, without following symbolic links.

    They are sorted by name, and those of a sweep as its file lists the experiments.
    """
    if is_run(root):
        yield root
        return
    if depth:
        try:
            below = [place for place in root.iterdir() if place.is_dir() and not place.is_symlink()]
        except OSError:
            return
        rank: dict[str, int] = {}
        with contextlib.suppress(UnreadableFileError):
            for number, run in enumerate(read_sweep(root)):
                rank.setdefault(run["folder"].split("/")[0], number)
        below.sort(key=lambda place: (rank.get(place.name, math.inf), place.name))
        for place in below:
            if not place.name.startswith("."):
                yield from find(place, depth - 1)


def records(paths: Iterable[pathlib.Path]) -> list[Record]:
    """Read the runs in the given folders, each the folder of a run, of a sweep or of several runs.

    Raises:
        RunFolderError: There are no runs.
    """
    folders = list(paths)
    found = [read(run) for folder in folders for run in find(folder)]
    if not found:
        raise RunFolderError(f"no runs found in {', '.join(map(str, folders))}")
    return distinguish(found)


def distinguish(found: Sequence[Record]) -> list[Record]:
    """Make the labels of different experiments distinct by appending the folders in which they differ."""
    by_label: dict[str, dict[str, list[Record]]] = {}
    for record in found:
        by_label.setdefault(record.label, {}).setdefault(experiment_key(record), []).append(record)
    labels: dict[int, str] = {}
    for label, experiments in by_label.items():
        places = [record.path for group in experiments.values() for record in group]
        above = pathlib.Path(os.path.commonpath(places)) if len(places) > 1 else places[0]
        for group in experiments.values():
            inside = min(record.path for record in group).relative_to(above).parts
            inside = inside[:-1] if len(inside) > 1 and inside[-1].startswith("seed-") else inside
            name = label if len(experiments) == 1 else f"{label} ({clean('/'.join(inside))})"
            labels |= {id(record): name for record in group}
    return [dataclasses.replace(record, label=labels[id(record)]) for record in found]


def experiment_key(record: Record) -> str:
    """Return a key that the seeds of one experiment share."""
    config = {k: v for k, v in record.config.items() if k not in ("seed", "executor")}
    objects = {k: v for k, v in record.setting.get("objects", {}).items() if k not in ("forward", "partition")}
    return json.dumps([config, objects], default=str)  # objects from Python may have equal names


def read(path: pathlib.Path) -> Record:
    """Read a run folder in whatever state it is."""
    try:
        return _read(path)
    except Exception as error:  # a folder may contain anything
        return Record(path, clean(path.name), problem=clean(f"it cannot be read: {error!r}"))


def _read(path: pathlib.Path) -> Record:
    problems: list[str] = []
    empty: dict[str, Any] = {}
    config_text = _attempt(lambda: read_text(path / CONFIG), "", problems)
    config = _attempt(lambda: read_config(path), empty, problems) if config_text else empty
    status = _attempt(lambda: read_status(path), empty, problems)
    summary = _attempt(lambda: read_summary(path), empty, problems, optional=True)
    setting = _sound_setting(_attempt(lambda: read_setting(path), empty, problems, optional=True), problems)
    main = setting["metrics"][0]["name"] if "metrics" in setting else ACCURACY.name
    lines = _evaluations(path, problems, main)
    _attempt(lambda: check_updates(path), None, problems, optional=True)
    algorithm = config.get("algorithm")
    name = algorithm.get("name") if isinstance(algorithm, Mapping) else None
    seed = config.get("seed", summary.get("seed"))
    error = status.get("error")
    return Record(
        path=path,
        label=clean(_sweep_label(path) or str(name or path.name)),
        seed=seed if isinstance(seed, int) and abs(seed) < 2**63 else None,
        state=BROKEN if problems else clean(_state(path, status)),
        problem=clean("; ".join(problems)) or (clean(str(error)) if error else None),
        config=config,
        config_text=config_text,
        status=status,
        summary=summary,
        setting=setting,
        metrics=lines,
    )


def _attempt(read_file: Callable[[], T], default: T, problems: list[str], *, optional: bool = False) -> T:
    """Return what a reader returns; note a problem and return the default if the file cannot be read."""
    try:
        return read_file()
    except UnreadableFileError as error:
        if not (optional and error.missing):
            problems.append(error.problem)
        return default


def metrics(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Return the evaluations of a run folder, up to the first line that is not valid."""
    return list(read(folder).metrics)  # type: ignore[arg-type]


def _evaluations(folder: pathlib.Path, problems: list[str], main: str) -> list[dict[str, Any]]:
    """Return the evaluations up to the first damaged line.

    Values that are not finite numbers become None, those of the main metric NaN: it may be undefined for some models.
    """
    lines: list[dict[str, Any]] = []
    try:
        for value in iter_metrics(folder, in_progress=True):
            numbers = {name: each if is_number(each) else None for name, each in value.items()}
            if isinstance(value.get(main), float) and numbers[main] is None:
                numbers[main] = math.nan
            if any(numbers.get(name) is None for name in (*REQUIRED, main)):
                problems.append(f"{METRICS} is damaged: line {len(lines) + 1} is not an evaluation")
                break
            lines.append({"loss": None} | numbers)
    except UnreadableFileError as error:
        problems.append(error.problem)
    return lines


def clean(text: str) -> str:
    """Return text as one line that is safe to display: valid Unicode, no control characters, limited length."""
    shown = text.encode("utf-8", "replace").decode()
    shown = re.sub(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]", "\ufffd", shown)
    return shown if len(shown) <= MAX_LABEL else f"{shown[: MAX_LABEL - 1]}…"


def _state(path: pathlib.Path, status: Mapping[str, Any]) -> str:
    state = str(status.get("state", BROKEN))
    return "killed" if state == "running" and not in_use(path) else state


def _sweep_label(path: pathlib.Path) -> str | None:
    """Return the label that the sweep of a run gives to it, if it belongs to one."""
    for sweep in path.parents[:2]:
        with contextlib.suppress(UnreadableFileError):
            for run in read_sweep(sweep):
                if run["folder"] == path.relative_to(sweep).as_posix():
                    return str(run["label"]) if "label" in run else None
    return None


# Validation of settings -----------------------------------------------------------------------------------------------


def _sound_setting(setting: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return the valid entries of a setting and note the invalid ones."""
    checks: dict[str, Callable[[Any], bool]] = {
        "clients": _is_count, "sizes": _are_counts, "partition": _is_table, "plan": _is_plan, "network": _is_network,
        "upload_shares": _are_shares, "metrics": _are_metrics, "period": is_number, "exponent": is_number,
        "attackers": _are_counts, "objects": _are_texts,
    }  # fmt: skip
    valid = {}
    for name, value in setting.items():
        try:
            good = name in checks and checks[name](value)
        except (TypeError, ValueError, KeyError, RecursionError):
            good = False
        if good:
            valid[name] = value
        elif name in checks:
            problems.append(f"{SETTING} is damaged: {name} is not valid")
    if "plan" in valid and not {"period", "exponent"} <= valid.keys():
        del valid["plan"]
    return valid


def is_number(value: object) -> bool:
    """Return whether a value of a file is a finite number of a sensible size."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 1e300
    )


def _are_metrics(entries: Any) -> bool:
    return bool(entries) and all(
        entry.keys() == {field.name for field in dataclasses.fields(MetricInfo)}
        and isinstance(entry["name"], str)
        and len(entry["name"]) <= MAX_NAME
        and entry["name"] == clean(entry["name"])
        and entry["higher_is_better"] in (True, False, None)
        and isinstance(entry["unit"], str)
        and entry["unit"] == clean(entry["unit"])[:MAX_NAME]
        for entry in entries
    )


def _are_shares(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and all(is_number(value) and value > 0 for value in values)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value <= MAX_CLIENTS


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, int) and 0 <= value < 2**53 for value in values)


def _is_table(rows: Any) -> bool:
    widths = {len(row) for row in rows if _are_counts(row)}
    return isinstance(rows, list) and all(map(_are_counts, rows)) and len(widths) == 1 and 0 not in widths


def _are_texts(values: Any) -> bool:
    return isinstance(values, dict) and all(isinstance(v, str) and len(v) <= MAX_NAME for v in values.values())


def _is_plan(rows: Any) -> bool:
    return all(len(row) == 4 and all(map(is_number, row)) and row[0] >= 1 and 0 < row[1] <= 1 for row in rows)


def _is_network(network: Any) -> bool:
    nodes = network["nodes"]
    return (
        _is_count(nodes)
        and is_number(network["rho"])
        and all(len(edge) == 2 and _are_counts(edge) and max(edge) < nodes for edge in network["edges"])
    )
