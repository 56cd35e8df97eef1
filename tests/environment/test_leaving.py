"""Trips whose client becomes unavailable, with known nights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import job

from offbeat.environment import Availability, Bernoulli, Constant, Environment
from offbeat.environment.availability import Span
from offbeat.errors import ConfigError

OnLeave = Literal["finish", "lost", "late"]
EVERY: tuple[OnLeave, ...] = ("finish", "lost", "late")
JOB = job(0, client=0, version=0, x=torch.zeros(1))


@dataclass(kw_only=True, frozen=True)
class Known(Availability):
    """Available from a to b for every (a, b) in `days`, unavailable otherwise."""

    days: tuple[tuple[float, float], ...]
    looks: float = math.inf
    """Spans are cut into pieces this long: a span says until when nothing changes *at least*."""

    def span(self, client: int, client_key: int, now: float) -> Span:
        for start, end in self.days:
            if now < start:
                return False, min(start, now + self.looks)
            if now < end:
                return True, min(end, now + self.looks)
        return False, math.inf

    def next_change(self, now: float) -> float:
        return self.span(0, 0, now)[1]


DAYS = ((0.0, 4.0), (10.0, 12.0), (20.0, 30.0))


def environment(
    on_leave: OnLeave,
    seconds: float,
    timeout: float | None = 1000.0,
    days: tuple[tuple[float, float], ...] = DAYS,
    looks: float = math.inf,
) -> Environment:
    return Environment(
        delay=Constant(value=seconds),
        availability=Known(days=days, looks=looks),
        on_leave=on_leave,
        trip_timeout=timeout,
    )


@pytest.fixture(autouse=True)
def _few_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return early for a client that never wakes up."""
    monkeypatch.setattr("offbeat.environment.environment.SLEEPS", 1000)


@pytest.mark.parametrize("looks", [math.inf, 0.5])
@pytest.mark.parametrize(
    ("now", "seconds", "finish", "lost", "late"),
    [
        (0.0, 3.0, 3.0, 3.0, 3.0),  # back before it sleeps
        (1.0, 3.0, 4.0, 4.0, 4.0),  # at the very moment
        (1.0, 3.5, 4.5, None, 10.5),  # ½ s is missing and done in the morning
        (0.0, 6.0, 6.0, None, 12.0),  # 4 + 2: at the very end of the second day
        (0.0, 7.0, 7.0, None, 21.0),  # over two nights: 4 + 2 + 1
        (3.0, 10.0, 13.0, None, 27.0),  # 1 + 2 + 7
        (6.0, 1.5, 11.5, 11.5, 11.5),  # asked while asleep: begins at 10
        (6.0, 2.0, 12.0, 12.0, 12.0),
        (6.0, 5.0, 15.0, None, 23.0),  # begins at 10, sleeps at 12, goes on at 20
        (4.0, 1.0, 11.0, 11.0, 11.0),  # a day does not contain its end
        (10.0, 1.0, 11.0, 11.0, 11.0),  # but its beginning
        (25.0, 5.0, 30.0, 30.0, 30.0),
    ],
)
def test_by_hand(now: float, seconds: float, finish: float, lost: float | None, late: float, looks: float) -> None:
    for on_leave, end in (("finish", finish), ("lost", lost), ("late", late)):
        outcome = environment(on_leave, seconds, looks=looks).trip(0, JOB, 1, 1, now)  # type: ignore[arg-type]
        assert outcome == ((now + 1000, False) if end is None else (end, True)), on_leave


def test_finish_is_the_default() -> None:
    assert Environment().on_leave == "finish"


@pytest.mark.parametrize(("timeout", "end", "arrives"), [(20.9, 20.9, False), (21.0, 21.0, True), (50.0, 21.0, True)])
def test_a_trip_that_sleep_makes_too_long_is_lost(timeout: float, end: float, arrives: bool) -> None:
    assert environment("late", 7.0, timeout).trip(0, JOB, 1, 1, 0.0) == (end, arrives)


def test_the_timeout_runs_while_the_client_sleeps() -> None:
    """Asked at 6, the client wakes up at 10 and needs 1 s: 5 s after the request."""
    for on_leave in EVERY:
        assert environment(on_leave, 1.0, timeout=4.5).trip(0, JOB, 1, 1, 6.0) == (10.5, False)
        assert environment(on_leave, 1.0, timeout=5.0).trip(0, JOB, 1, 1, 6.0) == (11.0, True)


def test_a_client_that_leaves_is_given_up_with_the_timeout_and_not_before() -> None:
    assert environment("lost", 7.0, timeout=9.0).trip(0, JOB, 1, 1, 2.0) == (11.0, False)


def test_a_client_that_never_wakes_up_is_lost() -> None:
    for on_leave in EVERY:
        assert environment(on_leave, 1.0, timeout=9.0).trip(0, JOB, 1, 1, 40.0) == (49.0, False)
    assert environment("late", 11.0, timeout=99.0, days=((0.0, 10.0),)).trip(0, JOB, 1, 1, 0.0) == (99.0, False)


def test_whether_a_client_is_available() -> None:
    there = environment("finish", 1.0)
    assert [there.awake(0, 0, now) for now in (0.0, 3.9, 4.0, 9.9, 10.0, 30.0)] == [
        True,
        True,
        False,
        False,
        True,
        False,
    ]


def test_leaving_for_good_needs_a_timeout() -> None:
    with pytest.raises(ConfigError) as caught:
        Environment(on_leave="lost")
    assert caught.value.key == "trip_timeout"
    assert str(caught.value) == (
        "trip_timeout: required with on_leave = 'lost': otherwise the server waits forever for a lost update"
    )
    Environment(on_leave="lost", trip_timeout=1.0)
    Environment(on_leave="late")


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6),
    st.integers(0, 40),
    st.integers(1, 30),
)
@settings(max_examples=200, deadline=None)
def test_late_is_so_many_seconds_awake(gaps: list[tuple[int, int]], now: int, seconds: int) -> None:
    """Return the end of a trip by counting whole seconds."""
    days, time = [], 0
    for night, day in gaps:
        days.append((float(time + night), float(time + night + day)))
        time += night + day
    days.append((1000.0, 2000.0))
    left, t = seconds, now
    first = None
    while left:
        up = any(a <= t < b for a, b in days)
        left -= up
        first = t if up and first is None else first
        t += 1
    assert first is not None
    late = environment("late", float(seconds), 1e6, tuple(days)).trip(0, JOB, 1, 1, float(now))
    assert late == (float(t), True)
    finish = environment("finish", float(seconds), 1e6, tuple(days)).trip(0, JOB, 1, 1, float(now))
    assert finish == (float(first + seconds), True)
    lost = environment("lost", float(seconds), 1e6, tuple(days)).trip(0, JOB, 1, 1, float(now))
    assert lost == (finish if late == finish else (now + 1e6, False))


@pytest.mark.parametrize("on_leave", EVERY)
def test_sleep_settings_do_not_affect_clients_that_are_always_available(on_leave: OnLeave) -> None:
    """Consecutive slots in which the client is available do not interrupt its work."""
    there = Environment(
        delay=Constant(value=25.5), availability=Bernoulli(probability=1.0), on_leave=on_leave, trip_timeout=99.0
    )
    end, arrives = there.trip(0, JOB, 1, 1, 0.25)
    assert end == pytest.approx(25.75, rel=1e-12)
    assert arrives


def test_lost_is_as_likely_as_it_should_be() -> None:
    """A trip of 2½ slots from the beginning of one: lost unless the client is awake in the two after the first."""
    there = Environment(
        delay=Constant(value=2.5), availability=Bernoulli(probability=0.7), on_leave="lost", trip_timeout=99.0
    )
    outcomes = []
    for n in range(8000):
        if there.awake(0, n, 0.0):
            outcomes.append(there.trip(0, job(0, client=n, version=0, x=JOB.x), 1, 1, 0.0)[1])
    share = sum(outcomes) / len(outcomes)
    assert abs(share - 0.49) < 4 * math.sqrt(0.49 * 0.51 / len(outcomes))


@pytest.mark.parametrize("on_leave", ["finish", "late"])
def test_a_client_that_never_wakes_up_without_a_timeout_is_an_error(on_leave: OnLeave) -> None:
    with pytest.raises(ConfigError, match="trip_timeout: required: client 0 was selected while unavailable"):
        environment(on_leave, 1.0, timeout=None).trip(0, JOB, 1, 1, 40.0)
