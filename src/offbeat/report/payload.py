"""The data that a page shows about a run, as dicts and lists for JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from offbeat.report import paired, series
from offbeat.report.config_diff import flat
from offbeat.report.groups import groups
from offbeat.report.read import Record, clean
from offbeat.report.theory import theory
from offbeat.runs.folder import STATUS, UpdateRows

CURVE = ("version", "virtual_seconds", "bytes_up")
SHOWN = ("staleness_mean", "staleness_max", "lost", "virtual_seconds", "bytes_up")
GRADIENTS = ("train_loss", "gradient_square", "heterogeneity")  # columns of `evaluation.gradient_clients`
COLUMNS = 400  # groups of clients in the map of labels
MAX_BASELINES = 20  # experiments that a report offers as baselines
NODES = 150  # larger networks are not drawn


def safe(value: Any, depth: int = 8) -> Any:
    """Return a value restricted to what JSON can represent: finite numbers, clean text, limited depth."""
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
    """Return the entry of a run in the list of runs."""
    last = record.metrics[-1] if record.metrics else {}
    progress = {key: last[key] for key in ("version", "virtual_seconds") if key in last}
    main = record.metric.name
    finals = {info.name: record.summary.get(info.name, last.get(info.name)) for info in record.task_metrics}
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
        "metrics": [dataclasses.asdict(info) for info in record.task_metrics],
        "finals": safe(finals),
        "best": safe(record.summary.get(f"best_{main}")),
        "config": flat(record.config),
        **progress,
        "summary": safe({key: record.summary[key] for key in SHOWN if record.summary.get(key) is not None}),
    }


def comparison(
    records: Sequence[Record], metric: str | None = None, axis: str | None = None, baseline: str | None = None
) -> dict[str, Any]:
    """Return paired differences for a page.

    Args:
        records: The runs.
        metric: Name of a metric; the main one by default.
        axis: Column of the axis on which all runs are compared, where the shortest ends; None for the end of each.
        baseline: As in `offbeat.report.paired.compare`.
    """
    at = paired.shared_point(records, axis) if axis else None
    found = paired.compare(records, metric, at, baseline)
    rows = [
        {
            "label": each.label,
            "baseline": each.baseline,
            "seeds": len(each.values),
            "above": each.above,
            **_rounded({"mean": each.mean, "low": each.low, "high": each.high}),
            **_rounded({"p": each.p_holm, "sign_p": each.sign_p_holm}),
        }
        for each in found.differences
    ]
    return {"rows": rows, "notes": list(found.notes), "confidence": found.confidence, "at": dict(found.at)}


def comparisons(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Return all comparisons that a report without a server offers, by metric, axis and baseline."""
    labels = list(dict.fromkeys(record.label for record in records))
    if len(labels) < 2:
        return {}
    names = dict.fromkeys(info.name for record in records for info in record.task_metrics)
    baselines = [None, *(labels if len(labels) <= MAX_BASELINES else ())]
    return {
        "|".join((name, axis or "", baseline or "")): comparison(records, name, axis, baseline)
        for name in names for axis in (None, *CURVE) for baseline in baselines
    }  # fmt: skip


def _rounded(values: Mapping[str, float | None]) -> dict[str, int | float | None]:
    return {name: None if value is None else _short(value, 6) for name, value in values.items()}


def curve(record: Record, begin: int = 0) -> dict[str, list[Any]]:
    """Return the evaluations from the given one on, as one list per metric."""
    lines = record.metrics[begin:]
    metrics = [info.name for info in record.task_metrics]
    more = ("consensus", "epsilon", f"{record.metric.name}_worst_decile", *GRADIENTS)
    names = [*CURVE, *metrics, *(name for name in more if lines and name in lines[0])]
    return {name: _plain(line.get(name) for line in lines) for name in names}


def thinned(curve: dict[str, list[Any]], most: int = 2000) -> dict[str, list[Any]]:
    """Return a long curve at some of its points, including the last."""
    count = len(curve["version"])
    if count <= most:
        return curve
    kept = np.unique(np.linspace(0, count - 1, most).astype(int))
    return {name: [values[at] for at in kept] for name, values in curve.items()}


def detail(record: Record) -> dict[str, Any]:
    """Return what is drawn for one run in addition to its curve, without the parts that it does not have."""
    found: dict[str, Any] = {
        "config": record.config_text,
        "status": safe({name: value for name, value in record.status.items() if value is not None}),
    }
    log = record.log()
    if len(log):
        found |= _of_log(log, record)
    found |= groups(record)
    if rows := theory(record):
        found["theory"] = rows
    if "attackers" in record.setting:
        found["attackers"] = len(record.setting["attackers"])
    for name, make in (("partition", _partition), ("plan", _plan), ("network", _network)):
        if name in record.setting:
            found[name] = make(record.setting)
    return found


def _of_log(log: UpdateRows, record: Record) -> dict[str, Any]:
    clients = max(record.clients, int(log["client"].max()) + 1)
    cuts, busy = series.at_work(log, clients)
    some, rows = series.sample_jobs(log)
    place = {int(client): at for at, client in enumerate(some)}
    wasted, sizes = ~series.aggregated(rows), record.sizes
    took, counts = series.durations(log)
    found = {
        "clients": clients,
        "trips": len(log),
        "lost": int((~series.aggregated(log)).sum()),
        "refused": _endings(log),
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
                [place[int(r["client"])], *_plain((r["sent"], r["time"]), 7), int(r["version"]), int(r["staleness"]), w]
                for r, w in zip(rows, wasted.tolist(), strict=True)
            ],
        },
        "durations": {"cuts": _plain(took), "count": counts.tolist()},
    }
    if record.has_cache:
        ages = series.ages(log, clients)
        found["ages"] = _columns(("version", "mean", "most", "heard"), (ages.version, ages.mean, ages.most, ages.heard))
    return found


def _endings(log: UpdateRows) -> dict[str, int]:
    """Count the jobs whose update was not aggregated, by reason."""
    counts = np.bincount(log["status"], minlength=len(STATUS))[: len(STATUS)]
    return {name: int(count) for name, count in zip(STATUS, counts, strict=True) if count and name != "aggregated"}


def _partition(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of examples per label; many clients are merged into groups of neighbors."""
    counts = np.array(setting["partition"], dtype=np.int64)
    group = -(-len(counts) // COLUMNS)
    grouped = np.add.reduceat(counts, np.arange(0, len(counts), group), axis=0)
    return {"group": group, "counts": grouped.tolist()}


def _plan(setting: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the choice of each device, and φ over its alternatives."""
    plan = setting["plan"]
    found = []
    for device, (chosen, rate, alpha, beta) in enumerate(plan[: series.DEVICES]):
        k = np.union1d(np.arange(2, 61, 2, dtype=float), [chosen])
        delta = np.union1d(np.round(np.linspace(0.02, 1.0, 50), 2), [rate])
        values = series.log_phi(setting, k[:, None], delta[None, :], alpha, beta)
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
    """Round to the given number of digits; numbers that are not finite become None."""
    return [None if value is None else _short(value, digits) for value in values]


def _short(value: Any, digits: int) -> int | float | None:
    if isinstance(value, int | np.integer):
        return int(value)
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
