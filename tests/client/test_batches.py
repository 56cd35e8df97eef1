"""The examples that a job trains on."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.executors import work
from torch import nn

from offbeat.client.batches import plan
from offbeat.client.rules import SGD
from offbeat.messages import Job

EXAMPLES, BATCHES, STEPS, SEEDS = st.integers(1, 60), st.integers(1, 70), st.integers(1, 40), st.integers(0, 2**63)


@given(EXAMPLES, BATCHES, STEPS, SEEDS)
@settings(max_examples=150, deadline=None)
def test_every_pass_covers_every_example_once(examples: int, batch_size: int, steps: int, seed: int) -> None:
    positions, counts = plan(examples, batch_size, steps, seed)
    width = min(batch_size, examples)
    assert positions.shape == (steps, width)
    assert counts.shape == (steps,)
    passes: list[list[int]] = [[]]
    for row, count in zip(positions, counts, strict=True):
        if len(passes[-1]) == examples:
            passes.append([])
        # All batches are full but the last of a pass, which has what is left.
        assert count == min(width, examples - len(passes[-1]))
        assert not row[count:].any(), "the rest is padding with 0"
        passes[-1] += row[:count].tolist()
    assert all(sorted(one) == list(range(examples)) for one in passes[:-1])
    last = passes[-1]  # may be cut short by the number of steps
    assert len(set(last)) == len(last)
    assert set(last) <= set(range(examples))


@given(EXAMPLES, BATCHES, st.integers(1, 4), SEEDS)
@settings(max_examples=100, deadline=None)
def test_dropped_batches(examples: int, batch_size: int, epochs: int, seed: int) -> None:
    """The full batches of every epoch are those with the short batch, which is left out."""
    rule = SGD(batch_size=batch_size, epochs=epochs, drop_last=True)
    positions, counts = plan(examples, batch_size, rule.local_steps(examples), seed, drop_last=True)
    steps = SGD(batch_size=batch_size, epochs=epochs).local_steps(examples)
    whole, all_counts = plan(examples, batch_size, steps, seed)
    kept = all_counts == batch_size if examples >= batch_size else all_counts > 0
    np.testing.assert_array_equal(positions, whole[kept])
    np.testing.assert_array_equal(counts, all_counts[kept])


@given(EXAMPLES, BATCHES, st.integers(1, 4), SEEDS)
@settings(max_examples=50, deadline=None)
def test_each_epoch_is_one_pass_over_the_data(examples: int, batch_size: int, epochs: int, seed: int) -> None:
    steps = SGD(batch_size=batch_size, epochs=epochs).local_steps(examples)
    positions, counts = plan(examples, batch_size, steps, seed)
    used = Counter(int(p) for row, count in zip(positions, counts, strict=True) for p in row[:count])
    assert used == dict.fromkeys(range(examples), epochs)


@given(EXAMPLES, BATCHES, STEPS, STEPS, SEEDS)
@settings(max_examples=50, deadline=None)
def test_fewer_steps_are_the_first_ones_of_more(examples: int, batch_size: int, one: int, two: int, seed: int) -> None:
    few, many = sorted((one, two))
    for short, long in zip(plan(examples, batch_size, few, seed), plan(examples, batch_size, many, seed), strict=True):
        np.testing.assert_array_equal(short, long[:few])


def test_by_hand() -> None:
    """Seven examples in batches of three: 3, 3, 1, and again; the eighth step is the second of the third pass."""
    positions, counts = plan(7, 3, 8, seed=0)
    assert counts.tolist() == [3, 3, 1, 3, 3, 1, 3, 3]
    assert positions.shape == (8, 3)
    assert positions[2, 1:].tolist() == positions[5, 1:].tolist() == [0, 0]


def test_a_client_smaller_than_a_batch_uses_what_it_has() -> None:
    positions, counts = plan(3, 100, 4, seed=0)
    assert positions.shape == (4, 3), "no wider than the client's data"
    assert counts.tolist() == [3] * 4
    assert all(sorted(row) == [0, 1, 2] for row in positions.tolist())


def test_the_seed_decides_and_every_pass_is_shuffled_anew() -> None:
    first, again, other = (plan(50, 50, 2, seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (first[0] != first[1]).any()


def test_the_batches_of_a_job_follow_from_its_seed_alone() -> None:
    """Common random numbers: neither the job's number nor the model's version matters."""
    context = work(nn.Linear(64, 4), SGD(batch_size=4)).context
    x = torch.zeros(context.layout.dim)
    jobs = Job(1, 4, 0, x, 9, seed=7), Job(2, 4, 3, x, 9, seed=7), Job(1, 4, 0, x, 9, seed=8)
    one, other, third = map(context.plan, jobs)
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))
    assert not np.array_equal(one[0], third[0])


def test_all_orders_are_equally_likely() -> None:
    orders = Counter(tuple(plan(3, 3, 1, seed)[0][0].tolist()) for seed in range(3000))
    assert len(orders) == 6
    for count in orders.values():  # binomial: 500 ± 20.4
        assert count == pytest.approx(500, abs=4 * 20.4)
