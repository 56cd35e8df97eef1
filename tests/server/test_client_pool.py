"""The pool's columns compared with plain lists, and their cost for clients that were never drawn."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.processes import resident_bytes

from offbeat.server.pool import MIN_MISSES, MISS_SHARE, Pool


class Lists:
    """A plain reference implementation of the pool."""

    def __init__(self, clients: int) -> None:
        self.order, self.trips, self.idle = list(range(clients)), [0] * clients, clients

    def swap(self, one: int, other: int) -> None:
        self.order[one], self.order[other] = self.order[other], self.order[one]

    def take(self, client: int) -> None:
        self.idle -= 1
        self.trips[client] += 1
        self.swap(self.order.index(client), self.idle)

    def release(self, client: int) -> None:
        self.swap(self.order.index(client), self.idle)
        self.idle += 1


def told(pool: Pool) -> tuple[list[int], list[int], int]:
    """Return the idle clients in order, the trips of all clients and the number of idle ones."""
    order = [difference + place for place, difference in enumerate(pool.order[: pool.idle])]
    assert [pool.place[client] + client for client in order] == list(range(pool.idle))
    assert [client for client in range(len(pool)) if pool.idles(client)] == sorted(order)
    return order, list(pool.trips), pool.idle


@settings(max_examples=30, deadline=None)
@given(clients=st.integers(1, 20), counts=st.lists(st.integers(0, 4), max_size=30), data=st.data())
def test_the_pool_behaves_like_plain_lists(clients: int, counts: list[int], data: st.DataObject) -> None:
    pool, lists = Pool(clients, seed=1), Lists(clients)
    for count in counts:
        for client in pool.draw(count, None):
            lists.take(client)
        busy = lists.order[lists.idle :]
        for client in data.draw(st.permutations(busy))[: len(busy) // 2]:
            pool.release(client)
            lists.release(client)
        assert told(pool) == (lists.order[: lists.idle], lists.trips, lists.idle)
        again = Pool(clients, seed=1)
        again.load_state_dict(pool.state_dict())
        assert told(again) == told(pool)
        assert [again._uniform() for _ in range(3)] == [pool._uniform() for _ in range(3)]
        pool.draws -= 3
        pool._numbers = []


def test_few_available_clients_are_found_among_many() -> None:
    """Random picks suffice as a rule; the pool scans all clients only where almost none is available."""
    clients = 100_000
    asked = 0

    def awake(client: int) -> bool:
        nonlocal asked
        asked += 1
        return client % 100 == 7

    drawn = Pool(clients, seed=0).draw(200, awake)
    assert len(set(drawn)) == 200
    assert all(client % 100 == 7 for client in drawn)
    assert asked < clients / 2
    assert Pool(clients, seed=0).draw(1, lambda client: client == 5) == [5]
    assert Pool(clients, seed=0).draw(1, lambda _: False) == []
    assert MIN_MISSES * MISS_SHARE > 2000, "with up to 2,000 clients draws are what they have always been"


def test_nothing_is_stored_for_clients_that_were_never_drawn() -> None:
    before = resident_bytes()
    pool = Pool(100_000_000, seed=0)
    drawn = pool.draw(50, None)
    assert resident_bytes() - before < 4_000_000, "a few pages for each that was drawn"
    state = pool.state_dict()
    assert sum(column.nbytes for name in ("order", "trips") for column in state[name]) < 50 * 40
    assert sorted(state["trips"][0].tolist()) == sorted(drawn)
    assert torch.equal(state["trips"][1], torch.ones(50, dtype=torch.int32))
