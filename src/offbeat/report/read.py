"""Run folders as they are on disk: whole, half-written or broken.  Nothing here raises for what a folder holds."""

from __future__ import annotations

import json
import pathlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import RunFolderError
from offbeat.experiments.folder import SETTING, STATUS, SWEEP, UPDATE, in_use

Log = NDArray[np.void]
"""Rows of `updates.npy`: one a trip that ended."""

DEPTH = 4  # folders below the one that was named, in which runs are looked for
BROKEN = "broken"


@dataclass(frozen=True)
class Record:
    """What one run folder says."""

    path: pathlib.Path
    label: str
    """What the run is called beside others; the seeds of one experiment share it."""
    seed: int | None = None
    state: str = BROKEN
    """running, finished, interrupted, failed, killed (it says running, and nobody is at work), or broken."""
    problem: str | None = None
    """Why it is broken, or with what it failed."""
    config: Mapping[str, Any] = field(default_factory=dict)
    config_text: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    setting: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, Any]] = ()

    def log(self) -> Log:
        """The trips so far; none where they cannot be read."""
        try:
            log = np.load(self.path / "updates.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return np.zeros(0, UPDATE)
        return log if log.dtype == UPDATE else np.zeros(0, UPDATE)

    @property
    def clients(self) -> int:
        known = self.summary.get("clients") or self.setting.get("clients")
        if known:
            return int(known)
        log = self.log()
        return int(log["client"].max()) + 1 if len(log) else 0


def is_run(path: pathlib.Path) -> bool:
    return any((path / name).is_file() for name in ("config.toml", "status.json", "metrics.jsonl"))


def find(root: pathlib.Path, depth: int = DEPTH) -> Iterator[pathlib.Path]:
    """Run folders at or under a folder, in the order of their names.  Links are not followed."""
    if is_run(root):
        yield root
        return
    if depth:
        try:
            below = sorted(place for place in root.iterdir() if place.is_dir() and not place.is_symlink())
        except OSError:
            return
        for place in below:
            if not place.name.startswith("."):
                yield from find(place, depth - 1)


def records(paths: Iterable[pathlib.Path]) -> list[Record]:
    """The runs in the given folders, each of which may be a run's, a sweep's or one that holds several."""
    found = [read(run) for path in paths for run in find(path)]
    if not found:
        raise RunFolderError("there is no run in the given folders")
    return named(found)


def named(found: Sequence[Record]) -> list[Record]:
    """With labels that tell the experiments apart."""
    kinds: dict[str, set[str]] = {}
    for record in found:
        kinds.setdefault(record.label, set()).add(_kind(record))
    return [
        record if len(kinds[record.label]) == 1 else _with_label(record, f"{record.label} ({record.path.name})")
        for record in found
    ]


def _with_label(record: Record, label: str) -> Record:
    return Record(**{**record.__dict__, "label": label})


def _kind(record: Record) -> str:
    """An experiment but for its seed."""
    return json.dumps({k: v for k, v in record.config.items() if k not in ("seed", "executor")}, default=str)


def read(path: pathlib.Path) -> Record:
    """A run folder, whatever state it is in."""
    problems: list[str] = []
    config_text = _text(path / "config.toml", problems)
    config = _toml(config_text, problems)
    status = _json(path / "status.json", problems)
    summary = _json(path / "summary.json", problems) if (path / "summary.json").is_file() else {}
    setting = _json(path / SETTING, problems) if (path / SETTING).is_file() else {}
    metrics = _lines(path / "metrics.jsonl", problems)
    algorithm = config.get("algorithm", {})
    name = str(algorithm.get("name", path.name)) if isinstance(algorithm, Mapping) else path.name
    seed = config.get("seed", summary.get("seed"))
    return Record(
        path=path,
        label=_label(path) or name,
        seed=seed if isinstance(seed, int) else None,
        state=BROKEN if problems else _state(path, status),
        problem="; ".join(problems) or (str(status["error"]) if status.get("error") else None),
        config=config,
        config_text=config_text,
        status=status,
        summary=summary,
        setting=setting,
        metrics=metrics,
    )


def _state(path: pathlib.Path, status: Mapping[str, Any]) -> str:
    state = str(status.get("state", BROKEN))
    return "killed" if state == "running" and not in_use(path) else state


def _label(path: pathlib.Path) -> str | None:
    """As the sweep calls it that the run belongs to."""
    for sweep in path.parents[:2]:
        if (sweep / SWEEP).is_file():
            runs = _json(sweep / SWEEP, []).get("runs")
            for run in runs if isinstance(runs, list) else []:
                if isinstance(run, dict) and run.get("folder") == path.relative_to(sweep).as_posix():
                    return str(run.get("label"))
    return None


def _text(path: pathlib.Path, problems: list[str]) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
    return ""


def _toml(text: str, problems: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(f"config.toml is no TOML: {error}")
    return {}


def _json(path: pathlib.Path, problems: list[str]) -> dict[str, Any]:
    if not (text := _text(path, problems)) and problems:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        problems.append(f"{path.name} is no JSON: {error}")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{path.name} is no table")
        return {}
    return value


NUMBERS = ("version", "virtual_seconds", "bytes_up", "accuracy", "loss")


def _lines(path: pathlib.Path, problems: list[str]) -> list[dict[str, Any]]:
    """The evaluations; a last line that is still being written is left out."""
    lines = []
    for line in _text(path, problems).split("\n")[:-1]:
        try:
            value = json.loads(line)
            lines.append({**value, **{name: value[name] + 0 for name in NUMBERS}})
        except (ValueError, TypeError, KeyError):
            problems.append(f"{path.name} has a line that is no evaluation: {line[:60]!r}")
            break
    return lines


def lost(log: Log) -> NDArray[np.bool_]:
    """Which trips came to nothing."""
    return np.asarray(log["status"] != STATUS.index("aggregated"))
