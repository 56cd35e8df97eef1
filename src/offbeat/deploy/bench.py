"""Flower's synchronous FedAvg and AsyncStrategy side by side: the same client app and nodes, one after the other."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from offbeat.deploy.bench_app import CONFIG
from offbeat.deploy.federation import federation
from offbeat.deploy.processes import Programs

MODES = ("fedavg", "async")
SMALL, LARGE = 0, 3330  # hidden units: 650 parameters, and 11.3 million, which are 45 MB


def throughput(nodes: int, updates: int, repeat: int) -> Iterator[dict[str, Any]]:
    """Updates a second with nothing but the way there and back."""
    with _runs(nodes) as run:
        for turn in range(repeat):
            for size, hidden in (("small", SMALL), ("45 MB", LARGE)):
                for mode in MODES:
                    found = run(mode=mode, nodes=nodes, hidden=hidden, updates=updates)
                    yield {"turn": turn, "model": size, "mode": mode, **found}


def race(nodes: int, seconds: float, slowdown: float, target: float, repeat: int) -> Iterator[dict[str, Any]]:
    """Seconds until the model is good enough, one node being slower than the others."""
    with _runs(nodes) as run:
        for turn in range(repeat):
            for mode in MODES:
                told = {"seconds": seconds, "slowdown": slowdown, "target": target}
                found = run(mode=mode, nodes=nodes, updates=100 * nodes, **told)
                yield {"turn": turn, "mode": mode, **found}


@contextlib.contextmanager
def _runs(nodes: int) -> Iterator[Callable[..., dict[str, Any]]]:
    with tempfile.TemporaryDirectory(prefix="offbeat-", ignore_cleanup_errors=True) as home, Programs() as programs:
        yield federation(programs, pathlib.Path(home), nodes, "offbeat.deploy.bench_app", CONFIG).run
