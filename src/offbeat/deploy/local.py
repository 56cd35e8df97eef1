"""The whole federation on this machine: a SuperLink, the server app and some nodes, on the loopback."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
import threading
import time

from offbeat.deploy.federation import HOST, Federation
from offbeat.deploy.flower_cli import Link
from offbeat.deploy.processes import Programs, free_ports
from offbeat.deploy.submission import Losses, Order, State, Submission
from offbeat.deploy.tell import RepeatLimiter, Tell
from offbeat.errors import OffbeatError
from offbeat.runs.result import Watch

LOOK_SECONDS = 0.2


def federate(order: Order, clients: int, interrupted: threading.Event, watch: Watch, tell: Tell) -> bool:
    """Run to the end (True), or until interrupted (False): the folder can be gone on with.

    `tell` is given what the user should know while the run goes on.  Nothing is left running, whatever happens.
    """
    with tempfile.TemporaryDirectory(prefix="offbeat-", ignore_cleanup_errors=True) as place:
        home = pathlib.Path(place)
        try:
            with Programs() as programs:
                return _Local(home, programs, order, clients).run(interrupted, watch, tell)
        finally:
            if order.out.is_dir() and (home / "logs").is_dir():
                shutil.copytree(home / "logs", order.out / "logs", dirs_exist_ok=True)


class _Local:
    def __init__(self, home: pathlib.Path, programs: Programs, order: Order, clients: int) -> None:
        self.programs, self.order, self.clients = programs, order, clients
        port, *ports = free_ports(1 + clients)
        link = Link(home, f"{HOST}:{port}", modules=[order.modules] if order.modules else [])
        place = f' data-dir="{order.data_dir.resolve()}"' if order.data_dir is not None else ""
        self.federation = Federation(
            link, programs, ports, [f"partition-id={client}{place}" for client in range(clients)]
        )
        self.submission = Submission(link, order)

    def run(self, interrupted: threading.Event, watch: Watch, tell: Tell) -> bool:
        losses, said = Losses(self.order.out), RepeatLimiter(tell)
        while not interrupted.is_set():
            for dead in self.programs.look():
                if dead is self.federation.superlink:
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
        self.submission.interrupt(self.federation.superexec.pid)
        return False
