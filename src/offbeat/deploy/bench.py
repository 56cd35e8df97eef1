"""Flower's synchronous FedAvg and AsyncStrategy side by side: the same client app and nodes, one after the other."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from offbeat.deploy.bench_app import CONFIG
from offbeat.deploy.flower import ENDED, Link, environment, program
from offbeat.deploy.processes import Program, Programs, await_port, free_ports
from offbeat.errors import OffbeatError

MODES = ("fedavg", "async")
LIMIT = 900.0  # seconds for one run
SMALL, LARGE = 0, 3330  # hidden units: 650 parameters, and 11.3 million, which are 45 MB


def throughput(nodes: int, updates: int, repeat: int) -> Iterator[dict[str, Any]]:
    """Updates a second with nothing but the way there and back."""
    with federation(nodes) as run:
        for turn in range(repeat):
            for size, hidden in (("small", SMALL), ("45 MB", LARGE)):
                for mode in MODES:
                    yield {"turn": turn, "model": size, "mode": mode, **run(mode=mode, hidden=hidden, updates=updates)}


def race(nodes: int, seconds: float, slowdown: float, target: float, repeat: int) -> Iterator[dict[str, Any]]:
    """Seconds until the model is good enough, one node being slower than the others."""
    with federation(nodes) as run:
        for turn in range(repeat):
            for mode in MODES:
                found = run(mode=mode, updates=100 * nodes, seconds=seconds, slowdown=slowdown, target=target)
                yield {"turn": turn, "mode": mode, **found}


class federation:  # noqa: N801 — a context manager, called like a function
    """Nodes that wait for runs of the benchmark's app."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self._place = tempfile.TemporaryDirectory(prefix="offbeat-")
        self._programs = Programs()

    def __enter__(self) -> federation:
        self.home = pathlib.Path(self._place.name)
        port, *ports = free_ports(1 + self.nodes)
        self.link = Link(self.home, f"127.0.0.1:{port}", app="offbeat.deploy.bench_app", config=CONFIG)
        self.link.prepare()
        self._env = environment(self.home) | {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // self.nodes))}
        superlink = self._start(
            "SuperLink", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port),
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        await_port(superlink, port, 120.0)
        for node, own in enumerate(ports):
            self._start(
                f"node-{node}", "flower-supernode", "--insecure", "--superlink", self.link.address,
                "--host", "127.0.0.1", "--port", str(own), "--node-config", f"partition-id={node}",
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._programs.end()
        self._place.cleanup()

    def __call__(self, **told: str | int | float) -> dict[str, Any]:
        """One run; what the server app has found."""
        out = self.home / "found.json"
        out.unlink(missing_ok=True)
        run = self.link.submit({"nodes": self.nodes, "out": str(out), **told})
        until = time.monotonic() + LIMIT
        while time.monotonic() < until:
            status, why = self.link.status(run)
            if status.startswith(ENDED):
                if not out.is_file():
                    raise OffbeatError(f"the run has ended without a result: {why}")
                found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
                return found
            time.sleep(1.0)
        raise OffbeatError(f"the run has not ended within {LIMIT:g} s")

    def _start(self, name: str, command: str, *words: str) -> Program:
        file = self.home / "logs" / f"{name}.log"
        return self._programs.start(Program(name, [program(command), *words], self._env, file, restart=False))
