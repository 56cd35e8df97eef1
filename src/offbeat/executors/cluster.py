"""Workers of a Ray cluster: how the cluster is found, and how workers start, reply and are lost.

A program that has called `ray.init` uses the cluster that it has joined. Otherwise RAY_ADDRESS, Ray's own convention,
names the cluster to join. Otherwise a cluster is started on this machine for as long as it is needed: on the cores
that this process may use, with a secret token (Ray listens on all interfaces and runs whatever it is sent), without
dashboard and usage statistics, and with its files in a folder that is deleted afterwards.
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
from offbeat.executors.pooled import WorkerLost
from offbeat.executors.workers import portable

MAX_FAILED_STARTS = 3  # workers in a row that may fail to start
START_TIMEOUT = 300.0  # seconds without any worker
POLL_INTERVAL = 2.0  # seconds between two checks of the cluster's size

_LOG = logging.getLogger("offbeat")


@dataclass(eq=False, slots=True)
class RayWorker:
    """A worker of the cluster.

    Attributes:
        actor: Ray's handle.
        reply: Reference to the reply that the worker owes; None when it is idle.
        node: Node on which it runs; empty until it has started.
        pid: Its process on that node.
    """

    actor: Any
    reply: Any
    node: str = ""
    pid: int = 0

    @property
    def idle(self) -> bool:
        """Whether the worker owes no reply."""
        return self.reply is None


class RayActor:
    """Holds a trainer in a worker's process.

    Args:
        paths: `sys.path` of the main process; the user's model may be defined there.
        packed: A reference, in a list so that Ray does not resolve it, to the trainer's class and its arguments.
    """

    def __init__(self, paths: Sequence[str], packed: Sequence[Any]) -> None:
        sys.path.extend(path for path in paths if path not in sys.path)  # before anything is unpickled
        kind, *arguments = ray.get(packed[0])
        self.trainer = kind(*arguments)

    def where(self) -> tuple[str, int]:
        """Return the node and the process of this actor."""
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def train(self, *request: Any) -> Any:
        """Call the trainer; return the exception that it raises."""
        try:
            return self.trainer.train(*request)
        except Exception as error:
            return portable(error)


class Cluster:
    """Workers that need one core or one GPU each.

    Attributes:
        workers: Workers that were requested and are not lost.

    Args:
        resource: What each worker needs.
    """

    def __init__(self, resource: Literal["CPU", "GPU"]) -> None:
        self.resource = resource
        self.workers: list[RayWorker] = []
        self._failures: list[str] = []  # why workers did not start, since the last one that did
        self._without_worker_since: float | None = None  # no worker has started, or all are lost
        self._requested, self._next_check = 0, 0.0  # workers, and when to check again whether there is room for them
        self._exit = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            stack.enter_context(_connected())
            self._exit = stack.pop_all()

    def close(self) -> None:
        """End the workers, and the cluster if this process has started it."""
        for worker in self.workers if ray.is_initialized() else ():
            ray.kill(worker.actor)
        self.workers.clear()
        self._exit.close()

    def size(self) -> int:
        """Return the number of workers that fit on the nodes that are alive."""
        return sum(int(node["Resources"].get(self.resource, 0)) for node in ray.nodes() if node["Alive"])

    def put(self, value: Any) -> Any:
        """Copy a value into the object store, from which each node fetches it once, and return a reference."""
        return ray.put(value)

    def request_workers(self, count: int, trainer: Any) -> None:
        """Request workers until there are `count` of them, or as many as fit on the cluster.

        A worker counts as soon as it is requested: the cluster may be busy, or a node may be about to join.

        Args:
            count: Number of workers that there is work for.
            trainer: Reference to the trainer's class and its arguments.
        """
        now = time.monotonic()
        checked = count <= self._requested and now < self._next_check
        if checked or len(self.workers) >= count or len(self._failures) >= MAX_FAILED_STARTS:
            return
        self._requested, self._next_check = count, now + POLL_INTERVAL
        needs = {"num_cpus": 0, "num_gpus": 1} if self.resource == "GPU" else {"num_cpus": 1}
        for _ in range(min(count, self.size()) - len(self.workers)):
            actor = ray.remote(RayActor).options(**needs, scheduling_strategy="SPREAD").remote(sys.path, [trainer])
            self.workers.append(RayWorker(actor, actor.where.remote()))

    def submit(self, worker: RayWorker, *request: Any) -> None:
        """Call the trainer of an idle worker."""
        worker.reply = worker.actor.train.remote(*request)

    def replies(self) -> Iterator[tuple[RayWorker, Any]]:
        """Wait for replies and for workers that start; a lost worker is removed and its reply is `WorkerLost`.

        Raises:
            OffbeatError: There is no worker, and none can be expected.
        """
        self._check_workers()
        expected = {worker.reply: worker for worker in self.workers if not worker.idle}
        for reference in _ready(list(expected), POLL_INTERVAL if self._without_worker_since else None):
            worker, worker.reply = expected[reference], None
            reply = _get(reference, worker.node)
            if isinstance(reply, WorkerLost):
                self.workers.remove(worker)
                self._next_check = 0.0
                ray.kill(worker.actor)  # it may still run, with only the connection lost
            if worker.node:
                yield worker, reply
            elif isinstance(reply, WorkerLost):
                self._failures.append(reply.reason)
            else:
                worker.node, worker.pid = reply
                self._failures.clear()

    def _check_workers(self) -> None:
        """Raise if there is no worker and none can be expected."""
        if any(worker.node for worker in self.workers):
            self._without_worker_since = None
            return
        self._without_worker_since = self._without_worker_since or time.monotonic()
        if not self.workers and self._failures:
            raise OffbeatError(f"no worker of the Ray cluster can be started: {self._failures[-1]}")
        size, waited = self.size(), time.monotonic() - self._without_worker_since
        if not size:
            raise OffbeatError(f"no worker is left: the Ray cluster has no node with a {self.resource}")
        if waited > START_TIMEOUT:
            free = ray.available_resources().get(self.resource, 0)
            raise OffbeatError(
                f"no worker has started in {waited:.0f} s: {free:g} of the Ray cluster's {size} {self.resource}s are "
                "free; `ray status` shows what uses the others"
            )


def _ready(references: list[Any], timeout: float | None) -> list[Any]:
    """Wait for the first result; return the references of all results that are there by then."""
    if not references:
        time.sleep(timeout or 0.0)
        return []
    first, rest = ray.wait(references, timeout=timeout)
    more, _ = ray.wait(rest, num_returns=len(rest), timeout=0) if first and rest else ([], rest)
    return [*first, *more]


def _get(reference: Any, node: str) -> Any:
    """Return a reply; raise the exception that the worker has raised."""
    try:
        reply = ray.get(reference)
    except RayError as error:
        return WorkerLost(_message(error), node)
    if isinstance(reply, BaseException):
        raise reply
    return reply


def _message(error: Exception) -> str:
    """Return the last line of Ray's message, without its advice: what was raised, or how a process died."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return textwrap.shorten(lines[-1], 250)


@contextlib.contextmanager
def _connected() -> Iterator[None]:
    """Stay connected to a cluster: the program's own, that of RAY_ADDRESS, or a new one on this machine."""
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    with contextlib.ExitStack() as stack:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            with _preserved_sigterm():
                if address:
                    ray.init(address, **quiet)
                else:
                    folder = tempfile.TemporaryDirectory(prefix="ray-", dir=_TEMPORARY, ignore_cleanup_errors=True)
                    local = {"num_cpus": _cores(), "include_dashboard": False, "_temp_dir": stack.enter_context(folder)}
                    _set_private_token()
                    ray.init("local", **local, **quiet)
        except (RayError, OSError, RuntimeError, ValueError) as error:
            what = f"the Ray cluster at {address} (RAY_ADDRESS) cannot be joined" if address else "Ray does not start"
            raise OffbeatError(f"{what}: {_message(error)}") from error
        stack.callback(ray.shutdown)
        _LOG.info("Ray cluster %s, %d nodes", address or "on this machine", len(ray.nodes()))
        yield


# The path must be short: Ray's sockets are there, and a socket's path has at most 107 characters.
_TEMPORARY = os.environ.get("RAY_TMPDIR", "/tmp" if os.name == "posix" else None)


def _set_private_token() -> None:
    """Set a token for the processes of a new cluster; without one Ray writes a token file to the user's home.

    It stays in the environment, since Ray remembers it as long as this process lives.
    """
    if not any(name.startswith("RAY_AUTH_") for name in os.environ):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def _cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


@contextlib.contextmanager
def _preserved_sigterm() -> Iterator[None]:
    """Restore the SIGTERM handler: that of `ray.init` ends the program at once, without a checkpoint."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)
