"""Run folders as they are on disk: whole, half-written, broken or hostile.  Nothing here raises for what one holds.

Links in a run folder are not followed, and nothing but plain files is opened: what is read may be shown to others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from offbeat.errors import RunFolderError
from offbeat.runs.folder import SETTING, STATUS, SWEEP, UPDATE, in_use

Log = NDArray[np.void]
"""Rows of `updates.npy`: one a trip that ended."""

DEPTH = 4  # folders below the one that was named, in which runs are looked for
BROKEN = "broken"
MOST_BYTES = 1 << 28  # of a file of text
MOST_CLIENTS = 10**8
NUMBERS = ("version", "virtual_seconds", "bytes_up", "accuracy")  # that every evaluation has, beside its loss


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

    @property
    def name(self) -> str:
        """Of its folder, for people."""
        return clean(self.path.name)

    @property
    def target(self) -> float | None:
        evaluation = self.config.get("evaluation")
        target: Any = evaluation.get("target") if isinstance(evaluation, Mapping) else None
        return float(target) if _number(target) else None

    @property
    def remembers(self) -> bool:
        """Whether its algorithm has a memory."""
        algorithm = self.config.get("algorithm")
        return isinstance(algorithm, Mapping) and "cache" in algorithm

    @property
    def clients(self) -> int:
        """How many there are, as far as it is known without the log."""
        for known in (self.summary.get("clients"), self.setting.get("clients")):
            if isinstance(known, int) and 0 < known <= MOST_CLIENTS:
                return known
        return 0

    @property
    def sizes(self) -> NDArray[np.int64] | None:
        """How many examples each client has, where that was written down."""
        sizes = self.setting.get("sizes")
        return np.array(sizes, dtype=np.int64) if sizes else None

    def log(self) -> Log:
        """The trips so far; none where they cannot be read."""
        try:
            with _opened(self.path / "updates.npy") as file:
                log = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return np.zeros(0, UPDATE)
        if not isinstance(log, np.ndarray) or log.dtype != UPDATE or log.ndim != 1 or not len(log):
            return np.zeros(0, UPDATE)
        sound = np.isfinite(log["sent"]) & np.isfinite(log["time"]) & (log["sent"] >= 0) & (log["time"] >= log["sent"])
        sound &= (log["client"] >= 0) & (log["client"] < (self.clients or MOST_CLIENTS)) & (log["staleness"] >= 0)
        return np.asarray(log[sound & (log["version"] >= 0) & (log["status"] < len(STATUS))])


def is_run(path: pathlib.Path) -> bool:
    with contextlib.suppress(OSError):
        return any((path / name).is_file() for name in ("config.toml", "status.json", "metrics.jsonl"))
    return False


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
    """With labels that tell the experiments apart: by the folders in which they differ."""
    kinds: dict[str, dict[str, list[Record]]] = {}
    for record in found:
        kinds.setdefault(record.label, {}).setdefault(_kind(record), []).append(record)
    labels: dict[int, str] = {}
    for label, several in kinds.items():
        places = [record.path for group in several.values() for record in group]
        above = pathlib.Path(os.path.commonpath(places)) if len(places) > 1 else places[0]
        for group in several.values():
            inside = min(record.path for record in group).relative_to(above).parts
            inside = inside[:-1] if len(inside) > 1 and inside[-1].startswith("seed-") else inside
            name = label if len(several) == 1 else f"{label} ({clean('/'.join(inside))})"
            labels |= {id(record): name for record in group}
    return [dataclasses.replace(record, label=labels[id(record)]) for record in found]


def _kind(record: Record) -> str:
    """An experiment but for its seed."""
    return json.dumps({k: v for k, v in record.config.items() if k not in ("seed", "executor")}, default=str)


def read(path: pathlib.Path) -> Record:
    """A run folder, whatever state it is in."""
    try:
        return _read(path)
    except Exception as error:  # what lies in a folder may be anything
        return Record(path, clean(path.name), problem=clean(f"it cannot be read: {error!r}"))


def _read(path: pathlib.Path) -> Record:
    problems: list[str] = []
    config_text = _text(path / "config.toml", problems)
    config = _toml(config_text, problems)
    status = _json(path / "status.json", problems)
    summary = _json(path / "summary.json", problems) if _there(path / "summary.json") else {}
    setting = _json(path / SETTING, problems) if _there(path / SETTING) else {}
    lines = _lines(path / "metrics.jsonl", problems)
    _check_log(path / "updates.npy", problems)
    setting = _sound(setting, problems)
    algorithm = config.get("algorithm")
    name = algorithm.get("name") if isinstance(algorithm, Mapping) else None
    seed = config.get("seed", summary.get("seed"))
    error = status.get("error")
    return Record(
        path=path,
        label=clean(_label(path) or str(name or path.name)),
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


def metrics(folder: pathlib.Path) -> list[dict[str, Any]]:
    """The evaluations of a run folder, up to the first line that is none."""
    return _lines(folder / "metrics.jsonl", [])


def clean(text: str) -> str:
    """One line that can be shown to people: no control characters, nothing that is no text, not too long."""
    shown = text.encode("utf-8", "replace").decode()
    shown = re.sub(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]", "\ufffd", shown)
    return shown if len(shown) <= 300 else f"{shown[:299]}…"


def _state(path: pathlib.Path, status: Mapping[str, Any]) -> str:
    state = str(status.get("state", BROKEN))
    return "killed" if state == "running" and not in_use(path) else state


def _label(path: pathlib.Path) -> str | None:
    """As the sweep calls it that the run belongs to."""
    for sweep in path.parents[:2]:
        if _there(sweep / SWEEP):
            runs = _json(sweep / SWEEP, []).get("runs")
            for run in runs if isinstance(runs, list) else []:
                if isinstance(run, dict) and run.get("folder") == path.relative_to(sweep).as_posix():
                    return str(run["label"]) if "label" in run else None
    return None


# Files ----------------------------------------------------------------------------------------------------------------


def _there(path: pathlib.Path) -> bool:
    return os.path.lexists(path)


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[BinaryIO]:
    """A plain file of a run folder: no link, no pipe, no device."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is no plain file")
        yield file


def _text(path: pathlib.Path, problems: list[str]) -> str:
    try:
        with _opened(path) as file:
            if os.fstat(file.fileno()).st_size > MOST_BYTES:
                raise OSError("it is too large")
            return file.read(MOST_BYTES).decode()
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is a link" if path.is_symlink() else getattr(error, "strerror", None) or str(error)
        problems.append(f"{path.name} cannot be read: {reason}")
    return ""


def _toml(text: str, problems: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        problems.append(f"config.toml is no TOML: {error}")
    return {}


def _json(path: pathlib.Path, problems: list[str]) -> dict[str, Any]:
    before = len(problems)
    text = _text(path, problems)
    if len(problems) > before:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        problems.append(f"{path.name} is no JSON: {error}")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{path.name} is no table")
        return {}
    return value


def _lines(path: pathlib.Path, problems: list[str]) -> list[dict[str, Any]]:
    """The evaluations; a last line that is still being written is left out.  A loss that is no number is None."""
    lines = []
    for line in _text(path, problems).split("\n")[:-1]:
        try:
            value = json.loads(line)
            numbers = {name: each if _number(each) else None for name, each in value.items()}
        except (ValueError, RecursionError, AttributeError):
            numbers = {}
        if any(numbers.get(name) is None for name in NUMBERS):
            problems.append(f"{path.name} has a line that is no evaluation: {line[:60]!r}")
            break
        lines.append({"loss": None} | numbers)
    return lines


def _number(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 1e300
    )


def _check_log(path: pathlib.Path, problems: list[str]) -> None:
    """Whether the log is one, from its first bytes and its size alone."""
    if not _there(path):
        return
    try:
        with _opened(path) as file:
            npy.read_magic(file)
            shape, _, kind = npy.read_array_header_1_0(file)
            rows = (os.fstat(file.fileno()).st_size - file.tell()) // UPDATE.itemsize
        if kind != UPDATE or len(shape) != 1 or shape[0] > rows:
            raise ValueError("it holds something else than trips")
    except (OSError, ValueError, EOFError) as error:
        reason = "it is a link" if path.is_symlink() else getattr(error, "strerror", None) or str(error)
        problems.append(f"{path.name} cannot be read: {reason}")


# What a setting may be ------------------------------------------------------------------------------------------------


def _sound(setting: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Those of its parts that are what they should be."""
    checks: dict[str, Callable[[Any], bool]] = {
        "clients": _is_count, "sizes": _are_counts, "partition": _is_table, "plan": _is_plan, "network": _is_network,
        "period": _number, "exponent": _number, "attackers": _are_counts,
    }  # fmt: skip
    found = {}
    for name, value in setting.items():
        try:
            good = name in checks and checks[name](value)
        except (TypeError, ValueError, KeyError, RecursionError):
            good = False
        if good:
            found[name] = value
        elif name in checks:
            problems.append(f"{name} in {SETTING} makes no sense")
    if "plan" in found and not {"period", "exponent"} <= found.keys():
        del found["plan"]
    return found


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value <= MOST_CLIENTS


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, int) and 0 <= value < 2**53 for value in values)


def _is_table(rows: Any) -> bool:
    widths = {len(row) for row in rows if _are_counts(row)}
    return isinstance(rows, list) and all(map(_are_counts, rows)) and len(widths) == 1 and 0 not in widths


def _is_plan(rows: Any) -> bool:
    return all(len(row) == 4 and all(map(_number, row)) and row[0] >= 1 and 0 < row[1] <= 1 for row in rows)


def _is_network(network: Any) -> bool:
    nodes = network["nodes"]
    return (
        _is_count(nodes)
        and _number(network["rho"])
        and all(len(edge) == 2 and _are_counts(edge) and max(edge) < nodes for edge in network["edges"])
    )


def lost(log: Log) -> NDArray[np.bool_]:
    """Which trips came to nothing."""
    return np.asarray(log["status"] != STATUS.index("aggregated"))
