"""Flower's synchronous FedAvg against AsyncStrategy, in turn on the same nodes with the same client app."""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from offbeat.deploy.federation import start_federation
from offbeat.deploy.processes import Programs
from offbeat_bench import Progress, no_progress
from offbeat_bench.deployment_app import CONFIG

MODES = ("fedavg", "async")
SMALL, LARGE = 0, 3330  # hidden units: 650 parameters, or 11.3 million (45 MB)


def throughput(nodes: int, updates: int, repeat: int, progress: Progress = no_progress) -> Iterator[dict[str, Any]]:
    """Measure updates per second when clients do next to no work.

    Args:
        nodes: Number of nodes.
        updates: Updates per run.
        repeat: Runs of each kind.
        progress: Called before each run.
    """
    models = (("small", SMALL), ("45 MB", LARGE))
    turns = list(itertools.product(range(repeat), models, MODES))
    with _runs(nodes) as run:
        for number, (turn, (size, hidden), mode) in enumerate(turns):
            progress(f"{mode}, {size}", number, len(turns))
            found = run(mode=mode, nodes=nodes, hidden=hidden, updates=updates)
            yield {"turn": turn, "model": size, "mode": mode, **found}


def race(
    nodes: int, seconds: float, slowdown: float, target: float, repeat: int, progress: Progress = no_progress
) -> Iterator[dict[str, Any]]:
    """Measure the seconds to a target accuracy when one node is slower than the others.

    Args:
        nodes: Number of nodes.
        seconds: How long a node works on a job.
        slowdown: Factor by which one node is slower.
        target: Accuracy to reach.
        repeat: Runs of each kind.
        progress: Called before each run.
    """
    turns = list(itertools.product(range(repeat), MODES))
    with _runs(nodes) as run:
        for number, (turn, mode) in enumerate(turns):
            progress(f"{mode} to {target:.0%}", number, len(turns))
            settings = {"seconds": seconds, "slowdown": slowdown, "target": target}
            found = run(mode=mode, nodes=nodes, updates=100 * nodes, **settings)
            yield {"turn": turn, "mode": mode, **found}


@contextlib.contextmanager
def _runs(nodes: int) -> Iterator[Callable[..., dict[str, Any]]]:
    with tempfile.TemporaryDirectory(prefix="offbeat-", ignore_cleanup_errors=True) as home, Programs() as programs:
        yield start_federation(programs, pathlib.Path(home), nodes, "offbeat_bench.deployment_app", CONFIG).run
