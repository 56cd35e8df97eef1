"""A SuperLink and some nodes on this machine, on the loopback, for runs of any Flower app."""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from offbeat.deploy.flower_cli import ASK_SECONDS, ENDED, Link, environment, program
from offbeat.deploy.processes import Program, Programs, await_port, free_ports
from offbeat.errors import OffbeatError

HOST = "127.0.0.1"
LIMIT = 900.0  # seconds for one run
START_SECONDS = 120.0  # for the SuperLink to listen


class Federation:
    """Programs of a federation; whoever made them ends them.

    The SuperExec is one of them: a SuperLink that starts its own puts it into a session where it is not found again.
    """

    def __init__(self, link: Link, programs: Programs, ports: Sequence[int], configs: Sequence[str]) -> None:
        """Nodes with these configs, each on a port of its own."""
        self.link, self.programs = link, programs
        link.prepare()
        self._env = environment(link.home, link.modules)
        self.superlink = self._start(
            "SuperLink", "flower-superlink", *link.tls, "--host", HOST, "--port", link.address.rpartition(":")[2],
            "--isolation", "process", "--disable-runtime-dependency-installation", restart=False,
        )  # fmt: skip
        await_port(self.superlink, HOST, int(link.address.rpartition(":")[2]), START_SECONDS)
        self.superexec = self._start("SuperExec", "flower-superexec", *link.tls, "--runtime-api-address", link.address)
        self._env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // len(configs))))
        for node, (port, config) in enumerate(zip(ports, configs, strict=True)):
            self._start(
                f"node {node}", "flower-supernode", *link.tls, "--superlink", link.address,
                "--host", HOST, "--port", str(port), "--node-config", config,
            )  # fmt: skip

    def run(self, **told: str | int | float) -> dict[str, Any]:
        """One run of the app, to its end: what the server app has written as JSON to its config's `out`."""
        out = self.link.home / "found.json"
        out.unlink(missing_ok=True)
        run = self.link.submit({"out": str(out), **told})
        asked = time.monotonic()
        until = asked + LIMIT
        while time.monotonic() < until:
            time.sleep(0.5)
            if not out.is_file() and time.monotonic() < asked + ASK_SECONDS:
                continue
            status, why = self.link.status(run)
            if status.startswith(ENDED):
                if not out.is_file():
                    raise OffbeatError(f"the run has ended without a result: {why}")
                found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
                return found
            asked = time.monotonic()
        raise OffbeatError(f"the run has not ended within {LIMIT:g} s")

    def _start(self, name: str, command: str, *words: str, restart: bool = True) -> Program:
        file = self.link.home / "logs" / f"{name.lower().replace(' ', '-')}.log"
        return self.programs.start(Program(name, [program(command), *words], self._env, file, restart=restart))


def federation(
    programs: Programs,
    home: pathlib.Path,
    nodes: int,
    app: str,
    config: Mapping[str, str | int | float],
    modules: Sequence[pathlib.Path] = (),
) -> Federation:
    """Nodes for an app: a module with `server` and `client`.  Each node knows its number and how many there are."""
    port, *ports = free_ports(1 + nodes)
    link = Link(home, f"{HOST}:{port}", modules=modules, app=app, config=config)
    return Federation(link, programs, ports, [f"partition-id={node} num-partitions={nodes}" for node in range(nodes)])
