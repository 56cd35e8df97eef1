"""A grid of stock Flower clients, which know nothing of offbeat."""

from __future__ import annotations

from typing import Any

from flwr.app import ConfigRecord
from tests.deploy import stock
from tests.deploy.double import Double

LR = ConfigRecord({"lr": 0.05})


def grid(n: int = 4, **more: object) -> Double:
    nodes = [{"partition-id": i, "num-partitions": n} for i in range(n)]
    return Double(stock.app, nodes, **more)  # type: ignore[arg-type]


TWO: dict[str, Any] = {"concurrency": 4, "buffer": 2}
