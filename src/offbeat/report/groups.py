"""The last evaluation per client and per class label, for a page."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.report.read import Record
from offbeat.runs.folder import CLIENT_METRICS, LABEL_METRICS, UnreadableFileError, read_last_line

BINS = 20
LISTED = 5  # clients with the worst values
MAX_LABELS = 1000


def groups(record: Record) -> dict[str, Any]:
    """Return the last evaluation's main metric per client and per label, as far as the run recorded them."""
    found: dict[str, Any] = {}
    for key, name, make in (("per_client", CLIENT_METRICS, _clients), ("per_label", LABEL_METRICS, _labels)):
        with contextlib.suppress(UnreadableFileError):
            line = read_last_line(record.path, name)
            values = _numbers(line.get(record.metric.name))
            version = line.get("version")
            if isinstance(version, int) and np.isfinite(values).any():
                found[key] = {"version": version, **make(record, values)}
    return found


def _clients(record: Record, values: NDArray[np.float64]) -> dict[str, Any]:
    """Return the distribution over the clients with test examples, and those that are worst off."""
    known = np.flatnonzero(np.isfinite(values))
    tested = values[known]
    fraction = record.metric.unit == "%" and tested.min() >= 0 and tested.max() <= 1
    counts, cuts = np.histogram(tested, BINS, (0.0, 1.0) if fraction else None)
    order = np.argsort(tested if record.metric.higher_is_better is not False else -tested, kind="stable")
    worst = order[: max(1, round(len(order) / 10))]
    return {
        "clients": len(known),
        "cuts": [_short(cut) for cut in cuts],
        "count": counts.tolist(),
        "mean": _short(tested.mean()),
        "median": _short(np.median(tested)),
        "worst_decile": _short(tested[worst].mean()),
        "worst": [[int(known[at]), _short(tested[at])] for at in order[:LISTED]],
    }


def _labels(record: Record, values: NDArray[np.float64]) -> dict[str, Any]:
    """Return the value of each label; None for labels without test examples."""
    return {"values": [_short(value) for value in values[:MAX_LABELS]]}


def _numbers(values: Any) -> NDArray[np.float64]:
    """Return a list of a file as numbers; whatever is not a finite number becomes NaN."""
    given = values if isinstance(values, list) else []
    numbers = (float(v) if isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e300 else math.nan
               for v in given)  # fmt: skip
    return np.fromiter(numbers, dtype=float)


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
