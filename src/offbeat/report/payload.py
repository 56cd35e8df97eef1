"""What a page shows of a run, as plain tables and lists that become JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from offbeat.fedluck_objective import phi
from offbeat.report import series
from offbeat.report.read import Log, Record, clean, lost
from offbeat.runs.folder import STATUS

CURVE = ("version", "virtual_seconds", "bytes_up", "accuracy", "loss")
SHOWN = ("accuracy", "best_accuracy", "staleness_mean", "staleness_max", "lost", "virtual_seconds", "bytes_up")
COLUMNS = 400  # clients, or groups of them, in the map of who has which labels
NODES = 150  # of a network that is drawn


def safe(value: Any, depth: int = 8) -> Any:
    """As JSON can say it: finite numbers, text that is text, nothing deep."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if math.isfinite(value) and abs(value) < 1e300 else None
    if isinstance(value, Mapping) and depth:
        return {clean(str(name)): safe(each, depth - 1) for name, each in value.items()}
    if isinstance(value, list | tuple) and depth:
        return [safe(each, depth - 1) for each in value]
    return clean(str(value))


def row(record: Record, name: str) -> dict[str, Any]:
    """A run in the list of runs."""
    last = record.metrics[-1] if record.metrics else {}
    progress = {key: last[key] for key in ("version", "virtual_seconds", "accuracy") if key in last}
    return {
        "id": name,
        "label": record.label,
        "seed": record.seed,
        "folder": record.name,
        "state": record.state,
        "problem": record.problem,
        "evaluations": len(record.metrics),
        "rounds": safe(record.config.get("rounds")),
        "target": record.target,
        "real": record.summary.get("real") is True,
        **progress,
        "summary": safe({key: record.summary[key] for key in SHOWN if record.summary.get(key) is not None}),
    }


def curve(record: Record, begin: int = 0) -> dict[str, list[Any]]:
    """The evaluations from the given one on, a list for each figure."""
    lines = record.metrics[begin:]
    names = [*CURVE, *(name for name in ("consensus", "epsilon") if lines and name in lines[0])]
    return {name: _plain(line.get(name) for line in lines) for name in names}


def thinned(curve: dict[str, list[Any]], most: int = 2000) -> dict[str, list[Any]]:
    """A long curve at some of its points, the last among them."""
    count = len(curve["version"])
    if count <= most:
        return curve
    kept = np.unique(np.linspace(0, count - 1, most).astype(int))
    return {name: [values[at] for at in kept] for name, values in curve.items()}


def detail(record: Record) -> dict[str, Any]:
    """All that is drawn of one run beside its curve; what it has not got is left out."""
    found: dict[str, Any] = {
        "config": record.config_text,
        "status": safe({name: value for name, value in record.status.items() if value is not None}),
    }
    log = record.log()
    if len(log):
        found |= _of_log(log, record)
    if "attackers" in record.setting:
        found["attackers"] = len(record.setting["attackers"])
    for name, make in (("partition", _partition), ("plan", _plan), ("network", _network)):
        if name in record.setting:
            found[name] = make(record.setting)
    return found


def _of_log(log: Log, record: Record) -> dict[str, Any]:
    clients = max(record.clients, int(log["client"].max()) + 1)
    cuts, busy = series.at_work(log, clients)
    some, rows = series.trips(log)
    place = {int(client): at for at, client in enumerate(some)}
    gone, sizes = lost(rows), record.sizes
    took, counts = series.durations(log)
    found = {
        "clients": clients,
        "trips": len(log),
        "lost": int(lost(log).sum()),
        "refused": _to_nothing(log),
        "staleness": _columns(("tau", "count"), series.staleness(log)),
        "staleness_over_time": _columns(("time", "mean", "most"), series.staleness_over_time(log)),
        "concurrency": _columns(("time", "busy"), series.concurrency(log)),
        "waiting": _columns(("time", "most"), series.waiting(log)),
        "participation": {
            "known": sizes is not None and len(sizes) == clients,
            **_columns(("data", "updates", "client"), series.participation(log, clients, sizes)),
        },
        "at_work": {"cuts": _plain(cuts), "rows": [_plain(line, 3) for line in busy]},
        "timeline": {
            "clients": [int(client) for client in some],
            "trips": [
                [place[int(r["client"])], *_plain((r["sent"], r["time"]), 7), int(r["version"]), int(r["staleness"]), g]
                for r, g in zip(rows, gone.tolist(), strict=True)
            ],
        },
        "durations": {"cuts": _plain(took), "count": counts.tolist()},
    }
    if record.remembers:
        ages = series.ages(log, clients)
        found["ages"] = _columns(("version", "mean", "most", "heard"), (ages.version, ages.mean, ages.most, ages.heard))
    return found


def _to_nothing(log: Log) -> dict[str, int]:
    """How many trips came to nothing for which reason."""
    counts = np.bincount(log["status"], minlength=len(STATUS))[: len(STATUS)]
    return {name: int(count) for name, count in zip(STATUS, counts, strict=True) if count and name != "aggregated"}


def _partition(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Examples of each label; many clients are put together in groups of neighbours."""
    counts = np.array(setting["partition"], dtype=np.int64)
    group = -(-len(counts) // COLUMNS)
    grouped = np.add.reduceat(counts, np.arange(0, len(counts), group), axis=0)
    return {"group": group, "counts": grouped.tolist()}


def _plan(setting: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each device what it chose, and φ over what it could have chosen."""
    plan = setting["plan"]
    found = []
    for device, (chosen, rate, alpha, beta) in enumerate(plan[: series.DEVICES]):
        k = np.union1d(np.arange(2, 61, 2, dtype=float), [chosen])
        delta = np.union1d(np.round(np.linspace(0.02, 1.0, 50), 2), [rate])
        values = np.log10(phi(k[:, None], delta[None, :], alpha, beta, setting["period"], setting["exponent"]))
        grid = {"ks": _plain(k), "deltas": _plain(delta), "phi": [_plain(line, 4) for line in values]}
        found.append({"client": device, "devices": len(plan), "k": chosen, "delta": rate, **grid})
    return found


def _network(setting: Mapping[str, Any]) -> dict[str, Any]:
    network = setting["network"]
    drawn = network["nodes"] <= NODES
    return {**network, "edges": network["edges"] if drawn else [], "drawn": drawn}


def _columns(names: Iterable[str], arrays: Iterable[Any]) -> dict[str, list[Any]]:
    return {name: _plain(array) for name, array in zip(names, arrays, strict=True)}


def _plain(values: Iterable[Any], digits: int = 6) -> list[Any]:
    """Numbers of so many digits; None for what is none."""
    return [None if value is None else _short(value, digits) for value in values]


def _short(value: Any, digits: int) -> int | float | None:
    if isinstance(value, int | np.integer):
        return int(value)
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
