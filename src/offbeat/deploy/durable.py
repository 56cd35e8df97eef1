"""A deployment that survives what may die.

The SuperLink keeps its state in a database, and the server app runs beside it, not under it; whatever dies is started
again.  A server app that has died is submitted as a new run, which goes on from the checkpoint in the run folder.
"""

from __future__ import annotations

import contextlib
import json
import threading

from offbeat.deploy import bundle as files
from offbeat.deploy.bundle import ServerBundle
from offbeat.deploy.flower_cli import Link, environment, program
from offbeat.deploy.processes import Program, Programs, await_port
from offbeat.deploy.submission import Losses, Order, State, Submission
from offbeat.deploy.tell import RepeatLimiter, Tell
from offbeat.errors import OffbeatError
from offbeat.files import write_json
from offbeat.runs.result import Watch

START_SECONDS = 120.0  # for the SuperLink to listen
LOOK_SECONDS = 0.5
FAILURES = 5  # of the server app in a row, without a new version between them: it is given up


class Server:
    """The server's half: `run` takes an experiment to its end."""

    def __init__(self, bundle: ServerBundle, listen: tuple[str, int], programs: Programs, order: Order) -> None:
        self.bundle, self.programs, self.order = bundle, programs, order
        (host, port), place = listen, bundle.place.resolve()
        self.home = place / "state"
        here = "127.0.0.1" if host == "0.0.0.0" else host
        self.link = Link(self.home, f"{here}:{port}", place / files.CA, [place])
        self.link.prepare()
        secret = ["--superexec-auth-secret-file", str(place / files.SECRET)]
        superlink = self._start(
            "SuperLink", "flower-superlink", "--host", host, "--port", str(port),
            "--ssl-ca-certfile", str(place / files.CA), "--ssl-certfile", str(place / files.CERTIFICATE),
            "--ssl-keyfile", str(place / files.KEY), "--enable-supernode-auth",
            "--database", str(self.home / "superlink.db"), "--isolation", "process", *secret,
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        await_port(superlink, here, port, START_SECONDS)
        self._register()
        self.superexec = self._start(
            "SuperExec", "flower-superexec", *self.link.tls, "--runtime-api-address", self.link.address, *secret
        )
        self.submission: Submission | None = None
        self._failures, self._version = 0, -1

    def run(self, interrupted: threading.Event, watch: Watch, tell: Tell) -> bool:
        """True when the run is finished, False when interrupted."""
        losses, said = Losses(self.order.out), RepeatLimiter(tell)
        while not interrupted.is_set():
            for dead in self.programs.look():
                tell(f"{dead.name} has ended; it is started again")
            for text in losses.news():
                said(text)
            if self.submission is None:
                self._submit(said)
            elif (state := self.submission.look()) is State.FINISHED:
                return True
            elif state is State.FAILED:
                self._failed(tell)
            elif (glance := self.submission.glance) is not None:
                watch(glance)
            interrupted.wait(LOOK_SECONDS)
        if self.submission is not None:
            self.submission.interrupt(self.superexec.pid)
        return False

    def _submit(self, tell: Tell) -> None:
        """A new run; the one before it, whose server app is no more, is done with."""
        last = self.home / "run.json"
        try:
            if last.is_file():
                with contextlib.suppress(OffbeatError):  # Flower may have noticed by itself
                    self.link.stop(json.loads(last.read_text(encoding="utf-8"))["run"])
            self.submission = Submission(self.link, self.order)
        except OffbeatError as error:
            tell(f"the run could not be submitted, it is tried again: {error}")
            return
        write_json(last, {"run": self.submission.run})

    def _failed(self, tell: Tell) -> None:
        assert self.submission is not None
        glance, error = self.submission.glance, self.submission.error
        version = glance.counters.version if glance else -1
        self._failures = 1 if version > self._version else self._failures + 1
        self._version, self.submission = max(version, self._version), None
        if self._failures >= FAILURES:
            raise OffbeatError(f"the server app has failed {FAILURES} times in a row: {error}")
        tell(f"the server app has ended at version {max(version, 0)} ({error}); it is started again")

    def _register(self) -> None:
        """Let the nodes in whose keys are in the bundle and not in the database yet."""
        file = self.home / "registered.json"
        known = set(json.loads(file.read_text(encoding="utf-8"))["keys"]) if file.is_file() else set()
        for key in self.bundle.node_keys:
            line = key.read_text(encoding="utf-8").strip()
            if line not in known:
                self.link.register(key)
                known.add(line)
                write_json(file, {"keys": sorted(known)})

    def _start(self, name: str, command: str, *words: str) -> Program:
        log = self.home / "logs" / f"{name.lower()}.log"
        env = environment(self.home, self.link.modules)
        return self.programs.start(Program(name, [program(command), *words], env, log))


def serve_forever(
    bundle: ServerBundle,
    listen: tuple[str, int],
    order: Order,
    interrupted: threading.Event,
    watch: Watch,
    tell: Tell,
) -> bool:
    """Run a server bundle's experiment to its end (True), or until interrupted (False)."""
    with Programs() as programs:
        return Server(bundle, listen, programs, order).run(interrupted, watch, tell)
