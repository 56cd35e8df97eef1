"""Figures calculated from the log, compared with plain loops over its rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.report import series
from offbeat.runs.folder import STATUS, UPDATE, UpdateRows


def log_of(rows: list[tuple[float, float, int, int, int, int]]) -> UpdateRows:
    """Return rows (sent, time, client, version, staleness, status) as a log, ordered by their ends."""
    log = np.zeros(len(rows), UPDATE)
    for at, (sent, time, client, version, staleness, status) in enumerate(sorted(rows, key=lambda row: row[1])):
        log[at] = (sent, time, client, version, staleness, 1, 10, status, 0.5)
    return log


@st.composite
def logs(draw: st.DrawFn) -> UpdateRows:
    """Return the log of a buffered server with three updates per version."""
    count = draw(st.integers(1, 60))
    ends = sorted(draw(st.lists(st.floats(0.1, 50), min_size=count, max_size=count)))
    rows, taken = [], 0
    for end in ends:
        status = draw(st.sampled_from([0, 0, 0, STATUS.index("lost")]))
        step = taken // 3
        staleness = draw(st.integers(0, step))
        rows.append(
            (
                draw(st.floats(0, 1)) * end,
                end,
                draw(st.integers(0, 6)),
                step - staleness,
                staleness * (not status),
                status,
            )
        )
        taken += status == 0
    return log_of(rows)


@settings(max_examples=60, deadline=None)
@given(logs())
def test_busy_clients_are_those_whose_trips_overlap(log: UpdateRows) -> None:
    time, busy = series.concurrency(log)
    cuts = series.edges(log)
    for at in (0, 57, len(time) - 1):
        low, high = cuts[at], cuts[at + 1]
        overlap = sum(max(0.0, min(high, row["time"]) - max(low, row["sent"])) for row in log)
        assert busy[at] == pytest.approx(overlap / (high - low), abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(logs())
def test_the_map_of_clients_adds_up_to_those_at_work(log: UpdateRows) -> None:
    clients = 7
    cuts, rows = series.at_work(log, clients)
    one, all_ = rows.sum(axis=0) @ np.diff(cuts), (log["time"] - log["sent"]).sum()
    assert one == pytest.approx(all_, abs=1e-6)
    longest = log[np.argmax(log["time"] - log["sent"])]
    assert rows[int(longest["client"])].max() > 0 or longest["time"] == longest["sent"]


def test_many_clients_are_put_together_evenly() -> None:
    log = log_of([(0.0, 10.0, client, 0, 0, 0) for client in range(0, 1000, 2)])
    _, rows = series.at_work(log, 1000)
    assert rows.shape == (series.ROWS, series.COLUMNS)
    np.testing.assert_allclose(rows, 0.5)


@settings(max_examples=60, deadline=None)
@given(logs())
def test_ages_are_those_of_the_latest_update_of_each_client(log: UpdateRows) -> None:
    found = series.ages(log, 7)
    for version, mean, most, heard in zip(found.version, found.mean, found.most, found.heard, strict=True):
        latest: dict[int, int] = {}
        for row in log[log["status"] == 0]:
            if row["version"] + row["staleness"] < version:
                latest[int(row["client"])] = int(row["version"])
        old = [version - pulled for pulled in latest.values()]
        assert heard == len(old) / 7
        assert (most, mean) == (max(old), pytest.approx(np.mean(old))) if old else (most == 0 and np.isnan(mean))


@settings(max_examples=60, deadline=None)
@given(logs())
def test_waiting_is_counted_from_the_servers_last_step(log: UpdateRows) -> None:
    taken = log[log["status"] == 0]
    _, most = series.waiting(log)
    assert most.max(initial=0) == (min(3, len(taken)) if len(taken) else 0)


@settings(max_examples=60, deadline=None)
@given(logs())
def test_staleness_counts_every_update_that_was_aggregated(log: UpdateRows) -> None:
    tau, counts = series.staleness(log)
    taken = log["staleness"][log["status"] == 0]
    assert counts.sum() == len(taken)
    assert all(count == (taken == value).sum() for value, count in zip(tau, counts, strict=True))
    time, mean, largest = series.staleness_over_time(log)
    if len(taken):
        assert np.nanmax(largest) == taken.max()
        assert len(time) == len(mean) == series.BINS


def test_waiting_continues_when_nothing_happens() -> None:
    log = log_of([(0.0, 1.0, 0, 0, 0, 0), (0.0, 50.0, 1, 0, 0, 0), (0.0, 100.0, 2, 0, 0, 0), (0.0, 200.0, 3, 1, 0, 0)])
    time, most = series.waiting(log)
    for at, expected in ((0.4, 1), (25, 1), (75, 2), (99.6, 3), (150, 0), (199.8, 1)):
        assert most[np.argmin(abs(time - at))] == expected, at


def test_large_staleness_is_put_together() -> None:
    log = log_of([(0.0, 1.0 + i, 0, 0, i, 0) for i in range(1000)])
    tau, counts = series.staleness(log)
    assert len(tau) <= 41
    assert counts.sum() == 1000
    assert counts[0] == tau[1] - tau[0]


def test_a_log_of_losses_alone_and_an_empty_one() -> None:
    gone = log_of([(0.0, 1.0, 0, 0, 0, STATUS.index("lost"))])
    assert [len(part) for part in series.staleness(gone)] == [0, 0]
    assert [len(part) for part in series.staleness_over_time(gone)] == [0, 0, 0]
    assert len(series.ages(gone, 3).version) == 0
    assert [len(part) for part in series.waiting(gone)] == [0, 0]
    assert series.sample_jobs(gone)[1]["client"].tolist() == [0]
    assert len(series.durations(np.zeros(0, UPDATE))[1]) == 0


def test_some_clients_of_many_are_drawn_with_their_first_trips() -> None:
    log = log_of([(float(i), i + 0.5, i % 500, i // 10, 0, 0) for i in range(50_000)])
    clients, trips = series.sample_jobs(log)
    assert len(clients) == series.DETAIL
    assert set(trips["client"]) <= set(clients.tolist())
    assert len(trips) == series.MAX_JOBS
    assert trips["sent"].max() < 40_000


def test_parts_of_the_updates_and_of_the_data() -> None:
    log = log_of([(0.0, 1.0 + i, client, 0, 0, 0) for i, client in enumerate([0, 0, 0, 1])])
    data, updates, who = series.participation(log, 3, np.array([50, 30, 20]))
    assert who.tolist() == [2, 1, 0]
    assert data.tolist() == [0.2, 0.3, 0.5]
    assert updates.tolist() == [0, 0.25, 0.75]
    assert len(series.participation(log, 100_000, None)[0]) == series.MAX_POINTS


def test_durations_are_even_in_the_logarithm_where_they_differ_much() -> None:
    cuts, counts = series.durations(log_of([(0.0, 10.0**i, 0, 0, 0, 0) for i in range(-1, 4)]))
    assert counts.sum() == 5
    np.testing.assert_allclose(np.diff(np.log10(cuts)), 4 / 50)
    cuts, _ = series.durations(log_of([(0.0, 1.0 + i, 0, 0, 0, 0) for i in range(5)]))
    np.testing.assert_allclose(np.diff(cuts), 0.1)
