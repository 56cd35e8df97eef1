"""Flower's synchronous FedAvg and AsyncStrategy side by side: the same client app and nodes, one after the other."""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from offbeat.deploy.federation import federation
from offbeat.deploy.processes import Programs
from offbeat_bench import Tell, silent
from offbeat_bench.deployment_app import CONFIG

MODES = ("fedavg", "async")
SMALL, LARGE = 0, 3330  # hidden units: 650 parameters, and 11.3 million, which are 45 MB


def throughput(nodes: int, updates: int, repeat: int, tell: Tell = silent) -> Iterator[dict[str, Any]]:
    """Updates a second with nothing but the way there and back."""
    models = (("small", SMALL), ("45 MB", LARGE))
    turns = list(itertools.product(range(repeat), models, MODES))
    with _runs(nodes) as run:
        for number, (turn, (size, hidden), mode) in enumerate(turns):
            tell(f"{mode}, {size}", number, len(turns))
            found = run(mode=mode, nodes=nodes, hidden=hidden, updates=updates)
            yield {"turn": turn, "model": size, "mode": mode, **found}


def race(
    nodes: int, seconds: float, slowdown: float, target: float, repeat: int, tell: Tell = silent
) -> Iterator[dict[str, Any]]:
    """Seconds until the model is good enough, one node being slower than the others."""
    turns = list(itertools.product(range(repeat), MODES))
    with _runs(nodes) as run:
        for number, (turn, mode) in enumerate(turns):
            tell(f"{mode} to {target:.0%}", number, len(turns))
            told = {"seconds": seconds, "slowdown": slowdown, "target": target}
            found = run(mode=mode, nodes=nodes, updates=100 * nodes, **told)
            yield {"turn": turn, "mode": mode, **found}


@contextlib.contextmanager
def _runs(nodes: int) -> Iterator[Callable[..., dict[str, Any]]]:
    with tempfile.TemporaryDirectory(prefix="offbeat-", ignore_cleanup_errors=True) as home, Programs() as programs:
        yield federation(programs, pathlib.Path(home), nodes, "offbeat_bench.deployment_app", CONFIG).run
