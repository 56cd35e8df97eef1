"""The app of `offbeat bench deploy`: a plain Flower client under Flower's FedAvg or under AsyncStrategy.

The client does not use offbeat, so both strategies do the same work: a network of a given width classifies digits.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import time
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from offbeat.algorithms import FedBuff
from offbeat.flower.strategy import AsyncStrategy

server = ServerApp()
client = ClientApp()

EPOCHS = 5
CONFIG: dict[str, str | int | float] = {
    "mode": "", "out": "", "nodes": 2, "updates": 8, "hidden": 0, "target": 2.0, "seconds": 0.0, "slowdown": 1.0,
}  # fmt: skip


def build_model(hidden: int) -> nn.Module:
    """Return a network with two hidden layers of the given width; 0 means a linear model."""
    torch.manual_seed(0)
    if not hidden:
        return nn.Linear(64, 10)
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def digits(part: int, parts: int) -> tuple[Tensor, Tensor]:
    """Return the examples of one of several parts; part −1 is the test set, every fifth example."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    chosen = [i for i in range(len(y)) if (i % 5 == 0 if part < 0 else i % 5 and i % parts == part)]
    return torch.tensor(x[chosen] / 16, dtype=torch.float32), torch.tensor(y[chosen])


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train for a few epochs, after a pause that stands for a slow device."""
    config, arrays = message.content.config_records["config"], message.content.array_records["arrays"]
    settings: dict[str, Any] = {**config, **context.node_config}
    model = build_model(int(settings["hidden"]))
    model.load_state_dict(arrays.to_torch_state_dict())
    slow = settings["slowdown"] if settings["partition-id"] == 0 else 1.0
    time.sleep(settings["seconds"] * slow)  # the training itself takes next to no time
    x, y = digits(settings["partition-id"], settings["nodes"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in (part for _ in range(EPOCHS) for part in torch.split(torch.randperm(len(x)), 32)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(x)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


class Reached(Exception):  # noqa: N818 — not an error
    """Raised to stop a run at its target accuracy."""


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run one strategy and write its figures to a file."""
    settings: dict[str, Any] = dict(context.run_config)
    nodes, hidden, updates = settings["nodes"], settings["hidden"], settings["updates"]
    meter = Meter(grid)
    while len(list(grid.get_node_ids())) < nodes:
        time.sleep(0.2)
    test_x, test_y = digits(-1, 1)
    started, accuracies = time.monotonic(), []

    def accuracy(version: int, arrays: ArrayRecord) -> MetricRecord:
        model = build_model(hidden)
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            right = (model(test_x).argmax(1) == test_y).float().mean().item()
        accuracies.append({"seconds": time.monotonic() - started, "accuracy": right})
        if right >= settings["target"]:
            raise Reached
        return MetricRecord({"accuracy": right})

    rounds, strategy = _strategy(settings["mode"], nodes, updates)
    names = ("nodes", "hidden", "seconds", "slowdown")
    with contextlib.suppress(Reached):
        strategy.start(
            grid=meter, initial_arrays=ArrayRecord(build_model(hidden).state_dict()), num_rounds=rounds, timeout=600,
            train_config=ConfigRecord({name: settings[name] for name in names}), evaluate_fn=accuracy,
        )  # fmt: skip
    seconds = time.monotonic() - started
    found = {
        "seconds": seconds, "updates": meter.replies, "updates_per_second": meter.replies / seconds,
        "bytes_down": meter.down, "bytes_up": meter.up, "accuracies": accuracies,
    }  # fmt: skip
    pathlib.Path(settings["out"]).write_text(json.dumps(found), encoding="utf-8")


def _strategy(mode: str, nodes: int, updates: int) -> tuple[int, Any]:
    if mode == "fedavg":
        return updates // nodes, FedAvg(fraction_evaluate=0.0, min_available_nodes=nodes)
    return updates, AsyncStrategy(FedBuff(eta=1 / nodes), concurrency=nodes, buffer=1, min_nodes=nodes)


class Meter(Grid):
    """A grid that counts replies and the bytes of arrays in both directions.

    Args:
        grid: The grid that carries the messages.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.replies = self.up = self.down = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages and count their bytes."""
        listed = list(messages)
        self.down += sum(_bytes(message) for message in listed)
        return self.grid.push_messages(listed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies and count them."""
        return self._counted(self.grid.pull_messages(message_ids))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages, wait for the replies and count both."""
        listed = list(messages)
        self.down += sum(_bytes(message) for message in listed)
        return self._counted(self.grid.send_and_receive(listed, timeout=timeout))

    def _counted(self, replies: Iterable[Message]) -> list[Message]:
        listed = [*replies]
        self.replies += sum(reply.has_content() for reply in listed)
        self.up += sum(_bytes(reply) for reply in listed if reply.has_content())
        return listed

    def get_node_ids(self) -> Iterable[int]:
        """Return the connected nodes."""
        return self.grid.get_node_ids()

    def set_run(self, run: Any) -> None:
        """Set the Flower run."""
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        """The Flower run."""
        return self.grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Create a message."""
        return self.grid.create_message(*args, **kwargs)


def _bytes(message: Message) -> int:
    return sum(record.count_bytes() for record in message.content.array_records.values())
