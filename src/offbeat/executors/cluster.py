"""Workers in a Ray cluster: where the cluster comes from, how workers start, answer and are lost.

A program that has called `ray.init` keeps what it has joined.  Else RAY_ADDRESS says which cluster to join, which is
Ray's own convention.  Else one is started on this machine, for as long as it is needed: on the cores that this process
may use, with a token that nobody else knows (Ray listens on all interfaces and runs whatever it is sent), without
dashboard and usage statistics, and with its files in a folder that goes away with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.exceptions import RayError

from offbeat.errors import OffbeatError
from offbeat.executors.workers import portable

STARTS = 3  # workers that may fail to start in a row
PATIENCE = 300.0  # seconds without any worker
GLANCE = 2.0  # seconds between two looks at what the cluster has

_LOG = logging.getLogger("offbeat")


@dataclass(frozen=True, slots=True)
class Gone:
    """What comes of an order whose worker is lost."""

    why: str


@dataclass(eq=False, slots=True)
class Member:
    """A worker somewhere in the cluster."""

    actor: Any
    asked: Any  # a reference to the answer that it owes; None when it is idle
    node: str = ""  # where it runs; empty until it has started
    pid: int = 0

    @property
    def idle(self) -> bool:
        return self.asked is None


class Worker:
    """What runs there: a trainer, made of a reference to its class and what it is called with."""

    def __init__(self, paths: Sequence[str], packed: Sequence[Any]) -> None:
        sys.path.extend(path for path in paths if path not in sys.path)  # first: the user's model may lie there
        kind, *arguments = ray.get(packed[0])
        self.trainer = kind(*arguments)

    def where(self) -> tuple[str, int]:
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def train(self, *order: Any) -> Any:
        try:
            return self.trainer.train(*order)
        except Exception as error:
            return portable(error)


class Cluster:
    """Workers that need a core each, or a GPU."""

    def __init__(self, resource: Literal["CPU", "GPU"]) -> None:
        self.resource = resource
        self.members: list[Member] = []
        self._failures: list[str] = []  # why workers have not started, since the last one that has
        self._alone_since: float | None = None  # without a worker that has started
        self._asked_for, self._look_at = 0, 0.0  # workers, and when to look anew for room for them
        self._exit = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            stack.enter_context(_joined())
            self._exit = stack.pop_all()

    def close(self) -> None:
        """End the workers, and the cluster if it is ours."""
        for member in self.members if ray.is_initialized() else ():
            ray.kill(member.actor)
        self.members.clear()
        self._exit.close()

    def size(self) -> int:
        """How many workers the nodes that are alive have room for."""
        return sum(int(node["Resources"].get(self.resource, 0)) for node in ray.nodes() if node["Alive"])

    def put(self, value: Any) -> Any:
        """A reference to a copy in the object store, from where a node fetches it once for all its workers."""
        return ray.put(value)

    def recruit(self, most: int, trainer: Any) -> None:
        """Ask for workers until there are so many, or as many as the cluster has room for.

        A worker counts from when it is asked for: the cluster may be full, or a node be on its way.
        """
        now = time.monotonic()
        looked = most <= self._asked_for and now < self._look_at
        if looked or len(self.members) >= most or len(self._failures) >= STARTS:
            return
        self._asked_for, self._look_at = most, now + GLANCE
        need = {"num_cpus": 0, "num_gpus": 1} if self.resource == "GPU" else {"num_cpus": 1}
        for _ in range(min(most, self.size()) - len(self.members)):
            actor = ray.remote(Worker).options(**need, scheduling_strategy="SPREAD").remote(sys.path, [trainer])
            self.members.append(Member(actor, actor.where.remote()))

    def ask(self, member: Member, *order: Any) -> None:
        member.asked = member.actor.train.remote(*order)

    def answers(self) -> Iterator[tuple[Member, Any]]:
        """Wait for answers, and for workers that start.  One that is lost is no member any more, and `Gone`."""
        self._check()
        owed = {member.asked: member for member in self.members if not member.idle}
        for reference in _ready(list(owed), GLANCE if self._alone_since else None):
            member, member.asked = owed[reference], None
            answer = _get(reference)
            if isinstance(answer, Gone):
                self.members.remove(member)
                self._look_at = 0.0
                ray.kill(member.actor)  # it may be that only the way to it is lost
            if member.node:
                yield member, answer
            elif isinstance(answer, Gone):
                self._failures.append(answer.why)
            else:
                member.node, member.pid = answer
                self._failures.clear()

    def _check(self) -> None:
        """Raise when there is no worker, and no hope for one."""
        if any(member.node for member in self.members):
            self._alone_since = None
            return
        self._alone_since = self._alone_since or time.monotonic()
        if not self.members and self._failures:
            raise OffbeatError(f"no worker of the Ray cluster can be started: {self._failures[-1]}")
        size, waited = self.size(), time.monotonic() - self._alone_since
        if not size:
            raise OffbeatError(f"no worker is left: the Ray cluster has no node with a {self.resource}")
        if waited > PATIENCE:
            free = ray.available_resources().get(self.resource, 0)
            raise OffbeatError(
                f"no worker has started in {waited:.0f} s: of the Ray cluster's {size} {self.resource}s {free:g} are "
                "free; `ray status` says who has the others"
            )


def _ready(references: list[Any], timeout: float | None) -> list[Any]:
    """Those of which the result is here; waits for the first of them, and takes the others that are here by then."""
    if not references:
        time.sleep(timeout or 0.0)
        return []
    first, rest = ray.wait(references, timeout=timeout)
    more, _ = ray.wait(rest, num_returns=len(rest), timeout=0) if first and rest else ([], rest)
    return [*first, *more]


def _get(reference: Any) -> Any:
    """The answer; what the worker has raised is raised here."""
    try:
        answer = ray.get(reference)
    except RayError as error:
        return Gone(_told(error))
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _told(error: Exception) -> str:
    """An error of Ray's without its advice: what was raised, or what it says of a dead process."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return textwrap.shorten(lines[-1], 250)


@contextlib.contextmanager
def _joined() -> Iterator[None]:
    """Be part of a cluster."""
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    with contextlib.ExitStack() as stack:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            with _sigterm_as_it_is():
                if address:
                    ray.init(address, **quiet)
                else:
                    folder = tempfile.TemporaryDirectory(prefix="ray-", dir=_SHORT, ignore_cleanup_errors=True)
                    own = {"num_cpus": _cores(), "include_dashboard": False, "_temp_dir": stack.enter_context(folder)}
                    _keep_to_ourselves()
                    ray.init("local", **own, **quiet)
        except (RayError, OSError, RuntimeError, ValueError) as error:
            what = f"the Ray cluster at {address} (RAY_ADDRESS) cannot be joined" if address else "Ray does not start"
            raise OffbeatError(f"{what}: {_told(error)}") from error
        stack.callback(ray.shutdown)
        _LOG.info("Ray cluster %s, %d nodes", address or "of our own", len(ray.nodes()))
        yield


_SHORT = os.environ.get("RAY_TMPDIR", "/tmp" if os.name == "posix" else None)  # paths of sockets have 107 characters


def _keep_to_ourselves() -> None:
    """A token for the processes of our own cluster; without one Ray writes it into a file in the user's home.

    It stays in the environment, since Ray remembers it for as long as this process lives.
    """
    if not any(name.startswith("RAY_AUTH_") for name in os.environ):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def _cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


@contextlib.contextmanager
def _sigterm_as_it_is() -> Iterator[None]:
    """`ray.init` makes SIGTERM end the program, which wants to end in good order."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)
