"""Metrics per client and per label as rows, and how evenly the clients are served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.metric_info import MetricInfo

DECILE = 0.1


def fairness(per_client: Mapping[str, NDArray[np.float64]], main: MetricInfo) -> dict[str, float]:
    """Return figures on the distribution of the main metric over clients, for an evaluation's row.

    Args:
        per_client: Values per client by metric, NaN for clients without test examples.
        main: The main metric.

    Returns:
        The mean of the worst tenth of the clients, the standard deviation over clients, and Jain's index
        (Σv)²/(n·Σv²), which is 1 if all clients have the same value; nothing if the metric is not known per client.
    """
    values = per_client.get(main.name, np.zeros(0))
    values = values[~np.isnan(values)]
    if not len(values):
        return {}
    ordered = np.sort(values) if main.higher_is_better is not False else np.sort(values)[::-1]
    squares = float(np.square(values).sum())
    return {
        f"{main.name}_worst_decile": float(ordered[: max(1, round(DECILE * len(values)))].mean()),
        f"{main.name}_client_std": float(values.std()),
        "jain": float(values.sum()) ** 2 / (len(values) * squares) if squares else 1.0,
    }


def columns(line: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    """Return the values per client of a stored evaluation, by metric."""
    return {name: np.array(values, dtype=float) for name, values in line.items() if isinstance(values, list)}


def client_rows(
    line: Mapping[str, Any], per_client: Mapping[str, NDArray[np.float64]], sizes: NDArray[np.int64]
) -> list[dict[str, Any]]:
    """Return one row per client with test examples.

    Args:
        line: The evaluation's row.
        per_client: Values per client by metric.
        sizes: Training examples per client.
    """
    known = np.flatnonzero(~np.isnan(next(iter(per_client.values()))))
    shared = {"version": line["version"], "virtual_seconds": line["virtual_seconds"]}
    return [
        {**shared, "client": int(i), "examples": int(sizes[i]), **{name: float(v[i]) for name, v in per_client.items()}}
        for i in known
    ]


def label_rows(line: Mapping[str, Any], per_label: Mapping[str, NDArray[np.float64]]) -> list[dict[str, Any]]:
    """Return one row per class label with test examples.

    Args:
        line: The evaluation's row.
        per_label: Values per label by metric.
    """
    known = np.flatnonzero(~np.isnan(next(iter(per_label.values()))))
    shared = {"version": line["version"], "virtual_seconds": line["virtual_seconds"]}
    return [{**shared, "label": int(i), **{name: float(v[i]) for name, v in per_label.items()}} for i in known]
