"""Properties over random arrival orders."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import job, update
from torch import Tensor

from offbeat.algorithms import ALGORITHMS, CA2FL, Algorithm
from offbeat.cache import Dense

CLIENTS, DIM = 6, 5
RULES = [name for name, kind in ALGORITHMS.items() if kind().network() is None]
BUFFERED = [name for name in RULES if name not in ("fedasync", "fedfa")]  # these are defined by the order of arrivals

orders = st.permutations(range(CLIENTS))
histories = st.lists(st.tuples(st.integers(0, CLIENTS - 1), st.booleans()), min_size=1, max_size=40)


def delta(n: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(n).standard_normal(DIM))


def started(name: str) -> Algorithm:
    rule = ALGORITHMS[name]()
    rule.start(torch.zeros(DIM, dtype=torch.float64), CLIENTS, participation=lambda _: 0.5)
    return rule


def arrive(rule: Algorithm, n: int, client: int, value: Tensor) -> None:
    j = job(n, client, rule.version, rule.x)
    rule.receive(j, update(j, value, examples=1 + client))


@given(st.sampled_from(BUFFERED), orders, orders)
@settings(max_examples=120, deadline=None)
def test_the_order_within_a_buffer_does_not_matter(name: str, one: list[int], other: list[int]) -> None:
    results = []
    for order in (one, other):
        rule = started(name)
        for round_ in range(3):
            for client in order:
                arrive(rule, client, client, delta(10 * round_ + client))
            rule.step()
        results.append(rule.x)
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-9)


@given(st.sampled_from(RULES), histories)
@settings(max_examples=120, deadline=None)
def test_zero_updates_do_not_change_x(name: str, history: list[tuple[int, bool]]) -> None:
    """Updates of zero from the current model leave x unchanged."""
    rule = started(name)
    for n, (client, steps) in enumerate(history):
        arrive(rule, n, client, torch.zeros(DIM, dtype=torch.float64))
        if steps:
            rule.step()
    assert not rule.x.any()


@given(st.sampled_from([name for name in RULES if "cache" in {f.name for f in fields(ALGORITHMS[name])}]), histories)
@settings(max_examples=120, deadline=None)
def test_a_cache_holds_the_latest_update_of_each_client_and_the_mean(
    name: str, history: list[tuple[int, bool]]
) -> None:
    rule = started(name)
    if name == "aced":
        rule.max_age = 1000  # type: ignore[attr-defined]
    cache = rule.cache  # type: ignore[attr-defined]
    assert isinstance(cache, Dense)
    stored: dict[int, Tensor] = {}
    pending: dict[int, Tensor] = {}
    for n, (client, steps) in enumerate(history):
        value = delta(n)
        # AREA keeps models: relative to the first one, here zero.
        pending[client] = rule.x + value if name == "area" else value
        arrive(rule, n, client, value)
        if name != "ca2fl" or steps:  # CA²FL takes its buffer over at the step, the others at once
            stored |= pending
            pending = {}
        if steps:
            rule.step()
    for client in range(CLIENTS):
        expected = stored.get(client, torch.zeros(DIM, dtype=torch.float64))
        torch.testing.assert_close(cache[client], expected, rtol=0, atol=1e-12)
    total = sum(stored.values(), torch.zeros(DIM, dtype=torch.float64))
    torch.testing.assert_close(cache.mean, total / CLIENTS, rtol=0, atol=1e-12)


@given(histories, st.floats(0.1, 3.0))
@settings(max_examples=60, deadline=None)
def test_ca2fl_follows_an_update_that_all_clients_share(history: list[tuple[int, bool]], size: float) -> None:
    """Once all clients have sent the same Δ, v = Δ for any further arrivals: calibration adds no noise."""
    rule = CA2FL()
    rule.start(torch.zeros(DIM, dtype=torch.float64), CLIENTS)
    same = torch.full((DIM,), size, dtype=torch.float64)
    for client in range(CLIENTS):
        arrive(rule, client, client, same)
    rule.step()
    for n, (client, _) in enumerate(history):
        before = rule.x
        arrive(rule, n, client, same)
        rule.step()
        torch.testing.assert_close(rule.x - before, same, rtol=0, atol=1e-9)
