"""What only asynchrony has, calculated from the log of trips: NumPy in, small arrays out, however long the log is.

A trip is one row of `updates.npy`: sent, time (of its end), client, version (pulled), staleness, status.  Trips that
were still under way when the run ended are in no log: what counts trips declines over the last of them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offbeat.report.read import Log, lost

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 200  # points of a series over time
ROWS, COLUMNS = 100, 120  # clients, or groups of them, and pieces of time, in the map of who was at work
DETAIL = 40  # clients whose single trips are drawn
TRIPS = 3000  # of those clients, at most
POINTS = 1500  # clients in a scatter plot, at most
DEVICES = 12  # whose φ is drawn


def edges(log: Log, bins: int = BINS) -> Floats:
    """Equal pieces of the time that the log covers."""
    return np.linspace(0.0, float(log["time"].max()), bins + 1)


def staleness(log: Log) -> tuple[Ints, Ints]:
    """τ and how many updates had it; beyond forty values they are put together evenly, τ being the least of each."""
    tau = log["staleness"][~lost(log)].astype(np.int64)
    if not len(tau):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    width = int(tau.max()) // 40 + 1
    counts = np.bincount(tau // width)
    return np.arange(len(counts)) * width, counts


def staleness_over_time(log: Log) -> tuple[Floats, Floats, Floats]:
    """The middle of each piece of time, and the mean and the largest τ of what arrived in it; nan where nothing did."""
    return _over_time(log[~lost(log)], "staleness")


def _over_time(log: Log, name: str) -> tuple[Floats, Floats, Floats]:
    if not len(log):
        return np.zeros(0), np.zeros(0), np.zeros(0)
    cuts = edges(log)
    place = _place(log["time"], cuts)
    counts = np.bincount(place, minlength=BINS).astype(float)
    sums = np.bincount(place, weights=log[name], minlength=BINS)
    most = np.full(BINS, -np.inf)
    np.maximum.at(most, place, log[name])
    empty = counts == 0
    mean = np.divide(sums, counts, out=np.full(BINS, np.nan), where=~empty)
    return _middles(cuts), mean, np.where(empty, np.nan, most)


def concurrency(log: Log) -> tuple[Floats, Floats]:
    """The middle of each piece of time, and how many clients were at work in it, in the mean."""
    cuts = edges(log)
    return _middles(cuts), _busy(log["sent"], log["time"], cuts)


def _busy(sent: Floats, ended: Floats, cuts: Floats) -> Floats:
    """Mean number of trips under way between two cuts, from the integral of their number."""
    integral = _since(np.sort(sent), cuts) - _since(np.sort(ended), cuts)
    busy = np.diff(integral) / np.maximum(np.diff(cuts), 1e-300)
    return np.where(busy < 1e-9 * max(len(sent), 1), 0.0, busy)  # what rounding leaves is nobody


def _since(at: Floats, cuts: Floats) -> Floats:
    """Σ (t − a) over all a ≤ t, for every t; `at` is sorted."""
    before = np.searchsorted(at, cuts, side="right")
    return before * cuts - np.concatenate(([0.0], np.cumsum(at)))[before]


def waiting(log: Log) -> tuple[Floats, Floats]:
    """The middle of each piece of time, and the most updates that waited in it for the server's next step."""
    taken = log[~lost(log)]
    if not len(taken):
        return np.zeros(0), np.zeros(0)
    cuts = edges(log)
    steps = taken["version"].astype(np.int64) + taken["staleness"]
    begins = np.concatenate(([True], steps[1:] != steps[:-1]))
    first = np.maximum.accumulate(np.where(begins, np.arange(len(steps)), 0))
    level = np.arange(len(taken)) - first + 1.0  # at each arrival, before a step
    after = np.where(np.concatenate((begins[1:], [False])), 0.0, level)  # the last of a step's updates sets it off
    before = np.searchsorted(taken["time"], cuts[:-1], side="right") - 1
    most = np.where(before >= 0, after[before], 0.0)  # what was there when the piece began
    np.maximum.at(most, _place(taken["time"], cuts), level)
    return _middles(cuts), most


@dataclass(frozen=True)
class Ages:
    """How old what a memory holds was, version by version."""

    version: Ints
    mean: Floats
    most: Ints
    heard: Floats
    """Part of the clients that the server had heard of."""


def ages(log: Log, clients: int) -> Ages:
    """Of every client's latest update: how many versions ago it was begun."""
    taken = log[~lost(log)]
    none = Ages(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64), np.zeros(0))
    if not len(taken):
        return none
    steps = taken["version"].astype(np.int64) + taken["staleness"]
    order = np.argsort(steps, kind="stable")
    steps, who, pulled = steps[order], taken["client"][order], taken["version"][order]
    versions = np.unique(np.linspace(1, int(steps[-1]) + 1, BINS).astype(np.int64))
    latest = np.full(max(clients, int(who.max()) + 1), -1, np.int64)
    mean, most, heard, done = [], [], [], 0
    for version in versions:
        upto = int(np.searchsorted(steps, version, side="left"))
        latest[who[done:upto]] = pulled[done:upto]  # of several of one client the last is kept
        done = upto
        known = version - latest[latest >= 0]
        mean.append(float(known.mean()) if len(known) else np.nan)
        most.append(int(known.max(initial=0)))
        heard.append(len(known) / len(latest))
    return Ages(versions, np.array(mean), np.array(most), np.array(heard))


def participation(log: Log, clients: int, sizes: Ints | None) -> tuple[Floats, Floats, Ints]:
    """Each client's part of the data (of the clients, where sizes are unknown) and of the aggregated updates, and who
    it is; of many clients some, evenly over their sizes."""
    counts = np.bincount(log["client"][~lost(log)], minlength=clients).astype(float)
    sizes = np.ones(len(counts), np.int64) if sizes is None or len(sizes) != len(counts) else sizes
    order = np.argsort(sizes, kind="stable")
    if len(order) > POINTS:
        order = order[np.linspace(0, len(order) - 1, POINTS).astype(int)]
    return sizes[order] / max(sizes.sum(), 1), counts[order] / max(counts.sum(), 1), order


def at_work(log: Log, clients: int) -> tuple[Floats, Floats]:
    """Cuts of the time, and for up to `ROWS` equal groups of clients the part of its time that each was at work."""
    cuts = edges(log, COLUMNS)
    rows = min(clients, ROWS)
    group = log["client"].astype(np.int64) * rows // clients
    order = np.argsort(group, kind="stable")
    ends = np.searchsorted(group[order], np.arange(rows + 1))
    members = np.bincount(np.arange(clients, dtype=np.int64) * rows // clients, minlength=rows)
    sent, ended = log["sent"][order], log["time"][order]
    busy = [_busy(sent[a:b], ended[a:b], cuts) for a, b in itertools.pairwise(ends)]
    return cuts, np.stack(busy) / members[:, None]


def trips(log: Log) -> tuple[Ints, Log]:
    """Some clients that took part, evenly over their numbers, and their first trips."""
    there = np.unique(log["client"])
    some = there[np.linspace(0, len(there) - 1, min(DETAIL, len(there))).astype(int)] if len(there) else there
    rows = log[np.isin(log["client"], some)]
    if len(rows) > TRIPS:
        rows = rows[np.argsort(rows["sent"], kind="stable")[:TRIPS]]
    return some.astype(np.int64), rows


def durations(log: Log) -> tuple[Floats, Ints]:
    """Cuts of the seconds that trips took, and how many took so long; the cuts are even in the logarithm where the
    longest took a hundred times the shortest."""
    took = np.maximum(log["time"] - log["sent"], 0.0)
    if not len(took):
        return np.zeros(1), np.zeros(0, np.int64)
    least, most = float(took.min()), float(took.max())
    if least > 0 and most > 100 * least:
        counts, cuts = np.histogram(np.log10(took), bins=50)
        return 10.0**cuts, counts
    counts, cuts = np.histogram(took, bins=50, range=(0.0, most or 1.0))
    return cuts, counts


def _place(at: Floats, cuts: Floats) -> Ints:
    return np.clip(np.searchsorted(cuts, at, side="left") - 1, 0, len(cuts) - 2)


def _middles(cuts: Floats) -> Floats:
    return (cuts[:-1] + cuts[1:]) / 2
