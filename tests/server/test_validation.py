"""Validation of updates: a rejected update leaves x, caches and clients as if it had been lost."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import job, update
from tests.support.loops import build, schedulers, worlds

from offbeat.algorithms import CA2FL, MIFA, Algorithm, FedBuff
from offbeat.environment import Constant, Environment
from offbeat.messages import Update
from offbeat.scheduling import Buffered
from offbeat.server.events import Arrival, Event, Lost
from offbeat.server.loop import Loop
from offbeat.server.validation import REASONS, Reason, UpdateValidator

X = torch.zeros(4)
JOB = job(7, 3, 2, X)
GOOD = update(JOB, torch.ones(4))


def changed(**parts: Any) -> Update:
    return dataclasses.replace(GOOD, **parts)


BAD: list[tuple[Update, Reason]] = [
    (changed(job=8), "wrong-job"),
    (changed(client=4), "wrong-job"),
    (changed(version=3), "wrong-job"),
    (changed(version=-1), "wrong-job"),
    (changed(delta=torch.ones(5)), "wrong-size"),
    (changed(delta=torch.ones(2, 2)), "wrong-size"),
    (changed(delta=torch.ones(4, dtype=torch.float64)), "wrong-type"),
    (changed(delta=torch.ones(4, dtype=torch.int32)), "wrong-type"),
    (changed(delta=[1.0] * 4), "wrong-type"),
    (changed(delta=torch.tensor([1.0, torch.nan, 0, 0])), "not-finite"),
    (changed(delta=torch.tensor([1.0, torch.inf, -torch.inf, 0])), "not-finite"),
    (changed(extra={"c": torch.ones(4)}), "wrong-extra"),
    (changed(steps=0), "invalid-counts"),
    (changed(steps=-3), "invalid-counts"),
    (changed(steps=4), "invalid-counts"),  # three were asked for
    (changed(examples=0), "invalid-counts"),
    (changed(examples=10**15), "invalid-counts"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_invalid_updates(bad: Update, reason: Reason) -> None:
    assert UpdateValidator().examine(JOB, GOOD, 0, JOB.x, {}, True) is GOOD
    assert UpdateValidator().examine(JOB, bad, 0, JOB.x, {}, True) == reason


def test_auxiliary_vectors() -> None:
    sizes = {"c": 4, "buffers": 2}
    both = {"c": torch.ones(4), "buffers": torch.ones(2)}
    assert UpdateValidator().examine(JOB, changed(extra=both), 0, JOB.x, sizes, True).extra is both  # type: ignore[union-attr]
    for wrong in (
        {},
        {"c": both["c"]},
        both | {"d": both["c"]},
        both | {"buffers": torch.ones(3)},
        both | {"c": torch.ones(2, 2)},
        both | {"c": torch.ones(4, dtype=torch.float64)},
        both | {"c": [1.0] * 4},
    ):
        assert UpdateValidator().examine(JOB, changed(extra=wrong), 0, JOB.x, sizes, True) == "wrong-extra"
    odd = both | {"buffers": torch.tensor([1.0, torch.nan])}
    assert UpdateValidator().examine(JOB, changed(extra=odd), 0, JOB.x, sizes, True) == "not-finite"


def test_the_numbers_of_trusted_updates_are_not_examined() -> None:
    """An executor of the simulation has checked them already, and a second pass over Δ would cost time."""
    diverged = changed(delta=torch.tensor([1.0, torch.nan, 0, 0]))
    assert UpdateValidator().examine(JOB, diverged, 0, JOB.x, {}, False) is diverged


def test_a_job_without_a_number_of_steps_accepts_any_number() -> None:
    """A Flower app chooses the number itself."""
    free = dataclasses.replace(JOB, steps=0)
    assert UpdateValidator().examine(free, changed(steps=1000), 0, JOB.x, {}, True).steps == 1000  # type: ignore[union-attr]
    assert UpdateValidator().examine(free, changed(steps=10**12), 0, JOB.x, {}, True) == "invalid-counts"


def test_updates_beyond_the_maximal_norm() -> None:
    assert UpdateValidator(max_norm=2.0).examine(JOB, GOOD, 0, JOB.x, {}, True) is GOOD
    assert UpdateValidator(max_norm=1.9).examine(JOB, GOOD, 0, JOB.x, {}, True) == "norm-exceeded"
    short = UpdateValidator(max_norm=1.0, beyond_norm="clip").examine(JOB, GOOD, 0, JOB.x, {}, True)
    assert isinstance(short, Update)
    torch.testing.assert_close(short.delta, torch.full((4,), 0.5))
    assert torch.equal(GOOD.delta, torch.ones(4)), "an update's tensors are never changed"


def test_stale_updates() -> None:
    assert UpdateValidator(max_staleness=3).examine(JOB, GOOD, 3, JOB.x, {}, True) is GOOD
    assert UpdateValidator(max_staleness=3).examine(JOB, GOOD, 4, JOB.x, {}, True) == "too-stale"
    less = UpdateValidator(max_staleness=3, beyond_staleness="shrink").examine(JOB, GOOD, 7, JOB.x, {}, True)
    assert isinstance(less, Update)
    torch.testing.assert_close(less.delta, torch.full((4,), 0.5))
    assert torch.equal(GOOD.delta, torch.ones(4)), "an update's tensors are never changed"


class Meddler:
    """A transport whose events are tampered with."""

    untrusted = True

    def __init__(self, honest: Any, meddle: Callable[[Arrival], list[Event]]) -> None:
        self.honest, self.meddle = honest, meddle
        self.queue: list[Event] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.honest, name)

    def receive(self) -> Event:
        if not self.queue:
            event = self.honest.receive()
            self.queue = self.meddle(event) if isinstance(event, Arrival) else [event]
        return self.queue.pop(0)


def ran(loop: Loop, meddle: Callable[[Arrival], list[Event]], turns: int = 150) -> tuple[Loop, dict[str, int]]:
    """Run the given number of turns, not counting unsolicited updates, and return the loop and the rejections."""
    loop.transport = Meddler(loop.transport, meddle)
    loop.start()
    refused: dict[str, int] = {}
    while turns:
        outcome = loop.turn()
        if outcome.refused is not None:
            refused[outcome.refused] = refused.get(outcome.refused, 0) + 1
        turns -= outcome.refused != "unsolicited"
        assert len(loop.out) == loop.pool.busy
    return loop, refused


def same(one: Loop, other: Loop) -> None:
    assert torch.equal(one.algorithm.x, other.algorithm.x)
    assert one.algorithm.version == other.algorithm.version
    assert one.out == other.out
    assert bool(torch.isfinite(one.algorithm.x).all())


algorithms: st.SearchStrategy[Callable[[], Algorithm]] = st.sampled_from(
    [FedBuff, CA2FL, lambda: MIFA(wait_for_all=False)]
)


@settings(max_examples=60, deadline=None)
@given(worlds, schedulers(), algorithms, st.integers(0, 99), st.sampled_from(range(len(BAD))))
def test_a_rejected_update_has_the_effect_of_a_lost_one(
    environment: Any, scheduler: Any, rule: Any, seed: int, kind: int
) -> None:
    if type(scheduler).__name__.lower() not in {name.replace("-", "") for name in rule().schedulers}:
        return
    broken, reason = BAD[kind]
    parts: dict[str, Any] = {
        field.name: getattr(broken, field.name)
        for field in dataclasses.fields(Update)
        if getattr(broken, field.name) is not getattr(GOOD, field.name)
    }
    damaged = 0

    def bad(event: Arrival) -> list[Event]:
        nonlocal damaged
        if event.job.id % 3:
            return [event]
        damaged += 1
        own: dict[str, Any] = parts | {name: -5 for name in parts if name in ("job", "client", "version")}
        if reason == "not-finite":  # in an update of this model's size
            own["delta"] = event.update.delta + broken.delta[1]
        return [dataclasses.replace(event, update=dataclasses.replace(event.update, **own))]

    def lost(event: Arrival) -> list[Event]:
        return [event] if event.job.id % 3 else [Lost(event.job, event.sent)]

    one, refused = ran(build(environment, copy.deepcopy(scheduler), seed, rule()), bad)
    other, nothing = ran(build(environment, copy.deepcopy(scheduler), seed, rule()), lost)
    assert refused == ({reason: damaged} if damaged else {})
    assert nothing == {}
    same(one, other)


@settings(max_examples=60, deadline=None)
@given(worlds, schedulers(), st.integers(0, 99))
def test_duplicate_and_unknown_updates_are_unsolicited(environment: Any, scheduler: Any, seed: int) -> None:
    """Updates that arrive again at once, again later, and for jobs that were never sent."""
    late: list[Arrival] = []

    def twice(event: Arrival) -> list[Event]:
        late.append(event)
        never = dataclasses.replace(event, job=dataclasses.replace(event.job, id=10**6 + event.job.id))
        return [never, event, event, late[0]]

    one, refused = ran(build(environment, copy.deepcopy(scheduler), seed), twice)
    other, _ = ran(build(environment, copy.deepcopy(scheduler), seed), lambda event: [event])
    assert set(refused) <= {"unsolicited"}
    same(one, other)


def test_unreadable_updates_are_distinguished_from_lost_ones() -> None:
    def meddle(event: Arrival) -> list[Event]:
        return [event] if event.job.id % 2 else [Lost(event.job, event.sent, "no payload", unreadable=True)]

    loop, refused = ran(build(Environment(delay=Constant()), Buffered(concurrency=4, buffer=2), 0), meddle)
    assert refused == {"unreadable": 75}
    assert loop.algorithm.version == 37


def test_every_reason_has_a_code_in_the_log() -> None:
    from offbeat.runs.folder import STATUS

    assert STATUS[:3] == ("aggregated", "lost", "late")
    assert STATUS[3:] == REASONS
