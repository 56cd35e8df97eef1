"""The whole federation on this machine: a SuperLink, the server app and some nodes, on the loopback."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
import threading
import time

from offbeat.deploy.flower import Link, environment, program
from offbeat.deploy.processes import Program, Programs, await_port, free_ports
from offbeat.deploy.submission import Losses, Order, State, Submission
from offbeat.deploy.tell import Said, Tell
from offbeat.errors import OffbeatError
from offbeat.experiments.run import Watch

START_SECONDS = 120.0  # for the SuperLink to listen
LOOK_SECONDS = 0.2


def federate(order: Order, clients: int, interrupted: threading.Event, watch: Watch, tell: Tell) -> bool:
    """Run to the end (True), or until interrupted (False): the folder can be gone on with.

    `tell` is given what the user should know while the run goes on.  Nothing is left running, whatever happens.
    """
    with tempfile.TemporaryDirectory(prefix="offbeat-", ignore_cleanup_errors=True) as place:
        home = pathlib.Path(place)
        try:
            with Programs() as programs:
                return _Federation(home, programs, order, clients).run(interrupted, watch, tell)
        finally:
            if order.out.is_dir() and (home / "logs").is_dir():
                shutil.copytree(home / "logs", order.out / "logs", dirs_exist_ok=True)


class _Federation:
    def __init__(self, home: pathlib.Path, programs: Programs, order: Order, clients: int) -> None:
        self.home, self.programs, self.order, self.clients = home, programs, order, clients
        port, *self.ports = free_ports(1 + clients)
        modules = [order.modules] if order.modules else []
        self.link = Link(home, f"127.0.0.1:{port}", modules=modules)
        self.link.prepare()
        self.env = environment(home, modules)
        self.superlink = self._start(
            "SuperLink", "flower-superlink", *self.link.tls, "--host", "127.0.0.1", "--port", str(port),
            "--isolation", "process", "--disable-runtime-dependency-installation", restart=False,
        )  # fmt: skip
        await_port(self.superlink, "127.0.0.1", port, START_SECONDS)
        self.superexec = self._start(
            "SuperExec", "flower-superexec", *self.link.tls, "--runtime-api-address", self.link.address
        )
        self.env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // clients)))
        for client in range(clients):
            self._node(client)
        self.submission = Submission(self.link, order)

    def run(self, interrupted: threading.Event, watch: Watch, tell: Tell) -> bool:
        losses, said = Losses(self.order.out), Said(tell)
        while not interrupted.is_set():
            for dead in self.programs.look():
                if dead is self.superlink:
                    raise OffbeatError(f"the SuperLink has ended; its last words:\n{dead.last_words()}")
                tell(f"{dead.name} has ended; it will be started again")
            for text in losses.news():
                said(text)
                if not losses.arrived and len(losses.clients) == self.clients:
                    raise OffbeatError(f"every client has failed; {text}")
            state = self.submission.look()
            if (glance := self.submission.glance) is not None:
                watch(glance)
            if state is State.FINISHED:
                return True
            if state is State.FAILED:
                raise OffbeatError(self.submission.error)
            time.sleep(LOOK_SECONDS)
        self.submission.interrupt(self.superexec.pid)
        return False

    def _node(self, client: int) -> None:
        config = f"partition-id={client}"
        if self.order.data_dir is not None:
            config += f' data-dir="{self.order.data_dir.resolve()}"'
        self._start(
            f"node {client}", "flower-supernode", *self.link.tls, "--superlink", self.link.address,
            "--host", "127.0.0.1", "--port", str(self.ports[client]), "--node-config", config,
        )  # fmt: skip

    def _start(self, name: str, command: str, *words: str, restart: bool = True) -> Program:
        file = self.home / "logs" / f"{name.lower().replace(' ', '-')}.log"
        return self.programs.start(Program(name, [program(command), *words], self.env, file, restart=restart))
