"""Some nodes on this machine that run any Flower app, for benchmarks and tests."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from offbeat.deploy.flower import ENDED, Link, environment, program
from offbeat.deploy.processes import Program, Programs, await_port, free_ports
from offbeat.errors import OffbeatError

LIMIT = 900.0  # seconds for one run
START_SECONDS = 120.0  # for the SuperLink to listen


class Federation:
    """A context in which nodes wait for runs of an app: a module with `server` and `client`.

    The server app writes what it has found as JSON to the path that its config calls `out`.
    """

    def __init__(
        self, nodes: int, app: str, config: Mapping[str, str | int | float], modules: Sequence[pathlib.Path] = ()
    ) -> None:
        self.nodes, self.app, self.config, self.modules = nodes, app, config, modules
        self._place = tempfile.TemporaryDirectory(prefix="offbeat-")
        self._programs = Programs()

    def __enter__(self) -> Federation:
        self.home = pathlib.Path(self._place.name)
        port, *ports = free_ports(1 + self.nodes)
        self.link = Link(self.home, f"127.0.0.1:{port}", modules=self.modules, app=self.app, config=self.config)
        self.link.prepare()
        self._env = environment(self.home, self.modules)
        self._env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self.nodes)))
        superlink = self._start(
            "SuperLink", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port),
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        await_port(superlink, "127.0.0.1", port, START_SECONDS)
        for node, own in enumerate(ports):
            self._start(
                f"node-{node}", "flower-supernode", "--insecure", "--superlink", self.link.address,
                "--host", "127.0.0.1", "--port", str(own),
                "--node-config", f"partition-id={node} num-partitions={self.nodes}",
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._programs.end()
        self._place.cleanup()

    def __call__(self, **told: str | int | float) -> dict[str, Any]:
        """One run; what the server app has found."""
        out = self.home / "found.json"
        out.unlink(missing_ok=True)
        run = self.link.submit({"out": str(out), **told})
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
