"""A SuperLink and its nodes on the loopback interface of this machine, for runs of any Flower app."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import threading
import time
from collections.abc import Sequence
from typing import Any

from offbeat.deploy.flower_cli import FINISHED, STATUS_SECONDS, Link, RunConfig
from offbeat.deploy.flower_programs import LOOPBACK, FlowerPrograms
from offbeat.deploy.processes import Programs, free_ports
from offbeat.deploy.supervisor import Supervisor
from offbeat.errors import OffbeatError

RUN_SECONDS = 900.0  # limit for one run

_LOG = logging.getLogger("offbeat")


class Federation:
    """A SuperLink without TLS, a SuperExec and some nodes.

    The SuperLink keeps its state in memory: when it exits, the federation is lost.

    Args:
        link: The SuperLink to start.
        programs: Where the programs are added; their owner ends them.
        ports: One port per node, for its client apps.
        configs: One node config per node.
    """

    def __init__(self, link: Link, programs: Programs, ports: Sequence[int], configs: Sequence[str]) -> None:
        self.link, self.programs = link, programs
        link.prepare()
        flower = FlowerPrograms(link, programs)
        self.superlink = flower.start_superlink(LOOPBACK, *link.tls, restart=False)
        self.superexec = flower.start_superexec()
        threads = os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // len(configs))))
        for node, (port, config) in enumerate(zip(ports, configs, strict=True)):
            flower.start_supernode(f"node {node}", port, config, env={"OMP_NUM_THREADS": threads})

    def run(self, **config: str | int | float) -> dict[str, Any]:
        """Run the app to its end.

        Args:
            config: The run config.

        Returns:
            The JSON that the server app has written to the file `out` of its run config.

        Raises:
            OffbeatError: The run ended without a result, or did not end in time.
        """
        out = self.link.home / "result.json"
        out.unlink(missing_ok=True)
        run = _AppRun(self.link, out, self.link.submit({"out": str(out), **config}))
        Supervisor(self.programs, threading.Event(), _LOG.warning).run(run)
        result: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return result


class _AppRun:
    """The task of running any app once."""

    def __init__(self, link: Link, out: pathlib.Path, run: str) -> None:
        self.link, self.out, self.run = link, out, run
        self._queried_at = time.monotonic()
        self._deadline = self._queried_at + RUN_SECONDS

    def poll(self) -> bool:
        """Return whether the run has ended with a result."""
        if time.monotonic() > self._deadline:
            raise OffbeatError(f"the run did not end within {RUN_SECONDS:g} s")
        if not self.out.is_file() and time.monotonic() < self._queried_at + STATUS_SECONDS:
            return False
        status, details = self.link.status(self.run)
        self._queried_at = time.monotonic()
        if not status.startswith(FINISHED):
            return False
        if not self.out.is_file():
            raise OffbeatError(f"the run ended without a result: {details}")
        return True

    def interrupt(self) -> None:
        """Leave the run to the owner of the programs."""


def start_federation(
    programs: Programs,
    home: pathlib.Path,
    nodes: int,
    app: str,
    config: RunConfig,
    modules: Sequence[pathlib.Path] = (),
) -> Federation:
    """Start a federation whose nodes know their number (`partition-id`) and how many there are (`num-partitions`).

    Args:
        programs: Where the programs are added.
        home: Folder for Flower's files.
        nodes: Number of nodes.
        app: A module with `server` and `client`.
        config: Defaults of the app's run config.
        modules: Folders of modules that the app imports.
    """
    port, *ports = free_ports(1 + nodes)
    link = Link(home, f"{LOOPBACK}:{port}", modules=modules, app=app, config=config)
    return Federation(link, programs, ports, [f"partition-id={node} num-partitions={nodes}" for node in range(nodes)])
