"""Tests of offbeat.flower.puller: fetching replies and watching nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import pytest
from flwr.app import Message, RecordDict
from tests.deploy import stock
from tests.deploy.fake_grid import FakeGrid
from tests.support import wait_until

from offbeat.flower import puller as module
from offbeat.flower.puller import NodeWatcher, Puller

SECONDS = 300.0  # ends what would hang, however busy the machine is


def test_a_slow_uplink_does_not_delay_other_replies() -> None:
    """The transfer of one reply does not end before thirty others have arrived."""
    grid = FakeGrid(stock.app, [])
    original, transferred = grid.pull_messages, threading.Event()

    def pull(message_ids: Iterable[str]) -> list[Message]:
        (message_id,) = message_ids
        if message_id == "slow":
            transferred.wait(SECONDS)
        return original([message_id])

    grid.pull_messages = pull  # type: ignore[method-assign]
    puller = Puller(grid)
    reply = Message(RecordDict(), 1, "train")
    names = ["slow", *(f"m{n}" for n in range(30))]
    grid.replies = {name: [reply] for name in names}
    for name in names:
        puller.add(name, 1)
    arrived = [puller.replies.get(timeout=SECONDS)[0] for _ in range(30)]
    assert "slow" not in arrived
    transferred.set()
    assert puller.replies.get(timeout=SECONDS)[0] == "slow"
    puller.close()


def test_unread_replies_do_not_accumulate() -> None:
    grid = FakeGrid(stock.app, [])
    puller = Puller(grid)
    for n in range(200):
        grid.replies[f"m{n}"] = [Message(RecordDict(), 1, "train")]
        puller.add(f"m{n}", 1)
    time.sleep(0.5)
    assert len(grid.replies) >= 200 - 3 * module.THREADS
    puller.close()
    assert wait_until(lambda: not any(t.name == "offbeat-pull" for t in threading.enumerate()))


def test_a_short_outage_of_the_superlink_is_tolerated() -> None:
    grid = FakeGrid(stock.app, [])
    grid.unreachable = True
    puller = Puller(grid, outage_seconds=SECONDS)
    grid.replies["m"] = [reply := Message(RecordDict(), 1, "train")]
    puller.add("m", 1)
    time.sleep(0.2)
    grid.unreachable = False
    assert puller.replies.get(timeout=SECONDS) == ("m", reply)
    puller.close()
    grid.unreachable = True
    puller = Puller(grid, outage_seconds=0.2)
    puller.add("n", 1)
    assert isinstance(puller.replies.get(timeout=SECONDS)[1], ConnectionError)
    puller.close()


def test_messages_to_an_offline_node_are_pulled_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower reports a message as lost only while its node is offline."""
    monkeypatch.setattr(module, "MIN_INTERVAL", 60.0)
    grid = FakeGrid(stock.app, [])
    grid.join({}, node=7)
    grid.join({}, node=8)
    puller = Puller(grid)
    watcher = NodeWatcher(grid, puller.nodes_changed)
    watcher.query()
    assert puller.replies.get(timeout=SECONDS) == ("", None)
    for node in (7, 8):
        grid.replies[f"to {node}"] = [Message(RecordDict(), 1, "train")]
        puller.add(f"to {node}", node)
    grid.leave(7)
    watcher.query()
    arrived = {puller.replies.get(timeout=SECONDS)[0] for _ in range(2)}
    assert arrived == {"", "to 7"}, "the other message is not due yet"
    assert puller.replies.empty()
    puller.close()
    grid.close()
