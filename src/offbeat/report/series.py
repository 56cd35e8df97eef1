"""Series about staleness, concurrency and participation, computed from the update log.

The input is `updates.npy`, one row per completed job; the output is small, however long the log is. Jobs that were in
flight when the run ended are not in the log, so the number of busy clients seems to decline at the end.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.fedluck_objective import phi
from offbeat.runs.folder import STATUS, UpdateRows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 200  # points of a series over time
ROWS, COLUMNS = 100, 120  # groups of clients and time bins in the map of busy clients
DETAIL = 40  # clients whose jobs are drawn one by one
MAX_JOBS = 3000  # of those clients
MAX_POINTS = 1500  # clients in a scatter plot
DEVICES = 12  # devices whose φ is drawn


def aggregated(log: UpdateRows) -> NDArray[np.bool_]:
    """Return a mask of the updates that the server aggregated."""
    return np.asarray(log["status"] == STATUS.index("aggregated"))


def edges(log: UpdateRows, bins: int = BINS) -> Floats:
    """Return the edges of equal time bins that cover the log."""
    return np.linspace(0.0, float(log["time"].max()), bins + 1)


def staleness(log: UpdateRows) -> tuple[Ints, Ints]:
    """Return a histogram: values of τ and their number of updates. More than forty values share bins of equal width."""
    tau = log["staleness"][aggregated(log)].astype(np.int64)
    if not len(tau):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    width = int(tau.max()) // 40 + 1
    counts = np.bincount(tau // width)
    return np.arange(len(counts)) * width, counts


def staleness_over_time(log: UpdateRows) -> tuple[Floats, Floats, Floats]:
    """Return the center of each time bin and the mean and largest τ of its arrivals, NaN for an empty bin."""
    return _over_time(log[aggregated(log)], "staleness")


def _over_time(log: UpdateRows, name: str) -> tuple[Floats, Floats, Floats]:
    if not len(log):
        return np.zeros(0), np.zeros(0), np.zeros(0)
    cuts = edges(log)
    place = _bin(log["time"], cuts)
    counts = np.bincount(place, minlength=BINS).astype(float)
    sums = np.bincount(place, weights=log[name], minlength=BINS)
    most = np.full(BINS, -np.inf)
    np.maximum.at(most, place, log[name])
    empty = counts == 0
    mean = np.divide(sums, counts, out=np.full(BINS, np.nan), where=~empty)
    return _centers(cuts), mean, np.where(empty, np.nan, most)


def concurrency(log: UpdateRows) -> tuple[Floats, Floats]:
    """Return the center of each time bin and the mean number of busy clients in it."""
    cuts = edges(log)
    return _centers(cuts), _busy(log["sent"], log["time"], cuts)


def _busy(sent: Floats, ended: Floats, cuts: Floats) -> Floats:
    """Return the mean number of jobs in flight between consecutive cuts, from the integral of their number."""
    integral = _since(np.sort(sent), cuts) - _since(np.sort(ended), cuts)
    busy = np.diff(integral) / np.maximum(np.diff(cuts), 1e-300)
    return np.where(busy < 1e-9 * max(len(sent), 1), 0.0, busy)  # remove rounding errors


def _since(at: Floats, cuts: Floats) -> Floats:
    """Return Σ (t − a) over all a ≤ t, for every cut t; `at` must be sorted."""
    before = np.searchsorted(at, cuts, side="right")
    return before * cuts - np.concatenate(([0.0], np.cumsum(at)))[before]


def waiting(log: UpdateRows) -> tuple[Floats, Floats]:
    """Return the center of each time bin and the largest number of updates that waited for a server step in it."""
    rows = log[aggregated(log)]
    if not len(rows):
        return np.zeros(0), np.zeros(0)
    cuts = edges(log)
    steps = rows["version"].astype(np.int64) + rows["staleness"]
    begins = np.concatenate(([True], steps[1:] != steps[:-1]))
    first = np.maximum.accumulate(np.where(begins, np.arange(len(steps)), 0))
    level = np.arange(len(rows)) - first + 1.0  # at each arrival, before a step
    after = np.where(np.concatenate((begins[1:], [False])), 0.0, level)  # the last update triggers the step
    before = np.searchsorted(rows["time"], cuts[:-1], side="right") - 1
    most = np.where(before >= 0, after[before], 0.0)  # waiting when the bin begins
    np.maximum.at(most, _bin(rows["time"], cuts), level)
    return _centers(cuts), most


@dataclass(frozen=True)
class Ages:
    """Ages of the cached updates, by version."""

    version: Ints
    mean: Floats
    most: Ints
    heard: Floats
    """Share of the clients from which the server had received an update."""


def ages(log: UpdateRows, clients: int) -> Ages:
    """Return the age of every client's latest update, in versions since the client started it."""
    rows = log[aggregated(log)]
    none = Ages(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64), np.zeros(0))
    if not len(rows):
        return none
    steps = rows["version"].astype(np.int64) + rows["staleness"]
    order = np.argsort(steps, kind="stable")
    steps, who, pulled = steps[order], rows["client"][order], rows["version"][order]
    versions = np.unique(np.linspace(1, int(steps[-1]) + 1, BINS).astype(np.int64))
    latest = np.full(max(clients, int(who.max()) + 1), -1, np.int64)
    mean, most, heard, done = [], [], [], 0
    for version in versions:
        upto = int(np.searchsorted(steps, version, side="left"))
        latest[who[done:upto]] = pulled[done:upto]  # the last update of a client wins
        done = upto
        known = version - latest[latest >= 0]
        mean.append(float(known.mean()) if len(known) else np.nan)
        most.append(int(known.max(initial=0)))
        heard.append(len(known) / len(latest))
    return Ages(versions, np.array(mean), np.array(most), np.array(heard))


def participation(log: UpdateRows, clients: int, sizes: Ints | None) -> tuple[Floats, Floats, Ints]:
    """Return each client's share of the data, its share of the aggregated updates, and its number.

    Without sizes, all clients count as equally large. Of many clients a sample is returned, evenly over their sizes.
    """
    counts = np.bincount(log["client"][aggregated(log)], minlength=clients).astype(float)
    sizes = np.ones(len(counts), np.int64) if sizes is None or len(sizes) != len(counts) else sizes
    order = np.argsort(sizes, kind="stable")
    if len(order) > MAX_POINTS:
        order = order[np.linspace(0, len(order) - 1, MAX_POINTS).astype(int)]
    return sizes[order] / max(sizes.sum(), 1), counts[order] / max(counts.sum(), 1), order


def at_work(log: UpdateRows, clients: int) -> tuple[Floats, Floats]:
    """Return edges of time bins, and for up to `ROWS` equal groups of clients the share of each bin they were busy."""
    cuts = edges(log, COLUMNS)
    rows = min(clients, ROWS)
    group = log["client"].astype(np.int64) * rows // clients
    order = np.argsort(group, kind="stable")
    ends = np.searchsorted(group[order], np.arange(rows + 1))
    members = np.bincount(np.arange(clients, dtype=np.int64) * rows // clients, minlength=rows)
    sent, ended = log["sent"][order], log["time"][order]
    busy = [_busy(sent[a:b], ended[a:b], cuts) for a, b in itertools.pairwise(ends)]
    return cuts, np.stack(busy) / members[:, None]


def sample_jobs(log: UpdateRows) -> tuple[Ints, UpdateRows]:
    """Return a sample of the participating clients, evenly over their numbers, and their first jobs."""
    present = np.unique(log["client"])
    chosen = (
        present[np.linspace(0, len(present) - 1, min(DETAIL, len(present))).astype(int)] if len(present) else present
    )
    rows = log[np.isin(log["client"], chosen)]
    if len(rows) > MAX_JOBS:
        rows = rows[np.argsort(rows["sent"], kind="stable")[:MAX_JOBS]]
    return chosen.astype(np.int64), rows


def durations(log: UpdateRows) -> tuple[Floats, Ints]:
    """Return a histogram of the durations of jobs: edges in seconds, and counts.

    The bins are logarithmic if the longest job took more than a hundred times as long as the shortest.
    """
    took = np.maximum(log["time"] - log["sent"], 0.0)
    if not len(took):
        return np.zeros(1), np.zeros(0, np.int64)
    least, most = float(took.min()), float(took.max())
    if least > 0 and most > 100 * least:
        counts, cuts = np.histogram(np.log10(took), bins=50)
        return 10.0**cuts, counts
    counts, cuts = np.histogram(took, bins=50, range=(0.0, most or 1.0))
    return cuts, counts


def log_phi(setting: Mapping[str, Any], k: Floats, delta: Floats, alpha: float, beta: float) -> Floats:
    """Return log₁₀ of FedLuck's φ for a device; arrays are broadcast.

    Args:
        setting: Content of `setting.json`.
        k: Local steps.
        delta: Compression rates.
        alpha: Seconds per local step of the device.
        beta: Its seconds to upload the whole model.
    """
    shares = setting.get("upload_shares")  # at δ = 0.01, 0.02, …, 1
    share = None if shares is None else np.interp(delta, np.arange(1, len(shares) + 1) / len(shares), shares)
    return np.log10(phi(k, delta, alpha, beta, setting["period"], setting["exponent"], share))


def _bin(at: Floats, cuts: Floats) -> Ints:
    return np.clip(np.searchsorted(cuts, at, side="left") - 1, 0, len(cuts) - 2)


def _centers(cuts: Floats) -> Floats:
    return (cuts[:-1] + cuts[1:]) / 2
