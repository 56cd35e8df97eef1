"""A grid of stock Flower clients that do not know offbeat."""

from __future__ import annotations

from typing import Any

from flwr.app import ConfigRecord
from tests.deploy import stock
from tests.deploy.fake_grid import FakeGrid

LR = ConfigRecord({"lr": 0.05})
BUFFER_OF_TWO: dict[str, Any] = {"concurrency": 4, "buffer": 2}


def grid(n: int = 4, **options: object) -> FakeGrid:
    """Return a grid of n nodes with equal parts of the data."""
    nodes = [{"partition-id": i, "num-partitions": n} for i in range(n)]
    return FakeGrid(stock.app, nodes, **options)  # type: ignore[arg-type]
