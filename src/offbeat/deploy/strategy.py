"""An asynchronous strategy for Flower's server apps: offbeat's rules in the place of FedAvg, with any client app."""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from offbeat.algorithms import Algorithm
from offbeat.clients import BUFFERS, Statistics
from offbeat.compression import Compression
from offbeat.deploy.log import TripLog
from offbeat.deploy.nodes import Nodes, real_world
from offbeat.deploy.replay import Replayed, turned
from offbeat.deploy.secret import keep, server_seed
from offbeat.deploy.transport import Flower, check_rule
from offbeat.deploy.wire import Named, metrics
from offbeat.engine import DISPATCHES, Arrival, Dispatch, Gate, Loop, Outcome, Terms
from offbeat.errors import ConfigError, RunFolderError
from offbeat.experiments import checkpoint, privacy

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

_LOG = logging.getLogger("flwr")


class AsyncStrategy:
    """Clients are sent the latest model whenever they are free; the server steps as the algorithm's dispatch says.

    algorithm        one of offbeat's server rules, such as `CA2FL(eta=1.0)`
    concurrency      clients that train at the same time
    buffer           updates a step, where the dispatch counts them
    dispatch         instead of the two: any dispatch that the algorithm takes, such as `Periodic(period=60)`
    clients          how many take part at most; as many as are there at the start when left out.  Leave room for those
                     that come later: algorithms with a memory divide by this number
    min_nodes        how many are waited for at the start; two, or `concurrency` if that is less
    evaluate_every   versions between two tests by `evaluate_fn` and on clients; the last version is always tested
    evaluate_clients on how many clients a version is tested; none when 0.  Training goes on meanwhile
    compression      how offbeat's own clients code their updates
    gate             bounds for what is let in, such as `Gate(max_norm=10.0)`; what makes no sense never is
    folder           where checkpoints and the log go; a run that was killed goes on from there when it is started again
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        concurrency: int | None = None,
        buffer: int | None = None,
        dispatch: Dispatch | None = None,
        clients: int | None = None,
        min_nodes: int | None = None,
        evaluate_every: int = 1,
        evaluate_clients: int = 0,
        compression: Compression | None = None,
        gate: Gate | None = None,
        folder: str | os.PathLike[str] | None = None,
        seed: int = 0,
    ) -> None:
        check_rule(algorithm, "algorithm")
        if algorithm.client_rule is not None:
            raise ConfigError(
                f"{type(algorithm).__name__} is the server of the client rule {algorithm.client_rule!r}, which a "
                "Flower app does not have: use `offbeat deploy`, whose client does",
                key="algorithm",
            )
        self.algorithm = algorithm
        self.dispatch = dispatch or _dispatch(algorithm, concurrency, buffer)
        self.clients, self.seed = clients, seed
        busy: int = getattr(self.dispatch, "concurrency", 2)
        self.min_nodes = min_nodes or min(2, busy)
        self.evaluate_every, self.evaluate_clients = evaluate_every, evaluate_clients
        self.compression, self.gate = compression or Compression(), gate or Gate()
        self.folder = pathlib.Path(folder) if folder is not None else None
        privacy.check_step(algorithm, self.dispatch, self.gate)
        self.private = privacy.private(algorithm) is not None
        if self.private and evaluate_clients:
            raise ConfigError(
                "what clients find with their data is not hidden by private noise", key="evaluate_clients"
            )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """As `start` of Flower's own strategies.  A round is a version; `timeout` is how long a client may take."""
        wire = Named(initial_arrays, train_config or ConfigRecord(), self.compression)
        nodes = Nodes(self.clients or 0)
        transport = Flower(grid, wire, nodes, timeout)
        session = Session(self, wire, transport, nodes, num_rounds, evaluate_config or ConfigRecord(), evaluate_fn)
        try:
            return session.run()
        finally:
            session.close()

    def replay(self, initial_arrays: ArrayRecord) -> ArrayRecord:
        """The run in `folder` once more, from its log: the model that it had come to."""
        assert self.folder is not None, "a replay needs the run's folder"
        state = checkpoint.load(self.folder / "checkpoint", "cpu")
        if state is None:
            raise RunFolderError(f"{self.folder} has no checkpoint")
        wire = Named(initial_arrays, ConfigRecord(), self.compression)
        nodes = Nodes(state["clients"])
        loop = self.loop(wire, Replayed(self.folder, wire, nodes), nodes)
        if not turned(loop, state["loop"]["algorithm"]["version"]):
            raise RunFolderError(f"{self.folder}: the log ends at version {loop.algorithm.version}")
        return wire.arrays(loop.algorithm.x, _buffers(loop))

    def loop(self, wire: Named, transport: Any, nodes: Nodes) -> Loop:
        """The server loop, at the beginning of a run."""
        privacy.check_statistics(self.algorithm, wire.b is not None)
        algorithm, dispatch = copy.deepcopy(self.algorithm), copy.deepcopy(self.dispatch)
        half = Statistics(wire.b) if wire.b is not None else None
        world = real_world(nodes)
        beside = {BUFFERS: wire.b.numel()} if wire.b is not None else {}
        loop = Loop(
            algorithm, dispatch, world, transport, nodes.clients, lambda _: Terms(0), self.seed, half, self.gate, beside
        )
        seed = server_seed(algorithm, self.seed, self.folder)
        algorithm.start(wire.x, nodes.clients, seed, updates=dispatch.updates)
        if self.folder is not None:
            keep(algorithm, self.folder)
        if half is not None:
            half.start(wire.x, nodes.clients)
        return loop


def _dispatch(algorithm: Algorithm, concurrency: int | None, buffer: int | None) -> Dispatch:
    """The first of the algorithm's dispatches that has the settings given."""
    given = {name: value for name, value in (("concurrency", concurrency), ("buffer", buffer)) if value is not None}
    for name in algorithm.dispatches:
        if given.keys() <= {field.name for field in dataclasses.fields(DISPATCHES[name])}:
            return DISPATCHES[name](**given)
    raise ConfigError(
        f"none of the dispatches of {type(algorithm).__name__} ({', '.join(algorithm.dispatches)}) takes "
        f"{' and '.join(given)}",
        key="dispatch",
    )


def _buffers(loop: Loop) -> torch.Tensor | None:
    return loop.half.extra().get(BUFFERS) if loop.half is not None else None


class Session:
    """One run of a strategy."""

    def __init__(
        self, strategy: AsyncStrategy, wire: Named, transport: Flower, nodes: Nodes, rounds: int,
        evaluate_config: ConfigRecord, evaluate_fn: EvaluateFn | None,
    ) -> None:  # fmt: skip
        self.strategy, self.wire, self.transport, self.nodes, self.rounds = strategy, wire, transport, nodes, rounds
        self.evaluate_config, self.evaluate_fn = evaluate_config, evaluate_fn
        self.result = Result()
        self._trained: list[Mapping[str, Any]] = []  # numbers of the updates since the last version
        self._tests: dict[int, list[Mapping[str, Any]]] = {}  # by version, from clients
        self._testing: dict[int, int] = {}  # by version: clients that have not answered
        self._tested = 0  # the client that is tested next

    def run(self) -> Result:
        state = self._prepare()
        strategy, transport = self.strategy, self.transport
        there = transport.start(strategy.min_nodes, transport.timeout)
        self.nodes.clients = self.nodes.clients or there
        self.loop = strategy.loop(self.wire, transport, self.nodes)
        if state is None:
            transport.adopt()
            self._test_here(0)
            self.loop.start()
        else:
            self.loop.load_state_dict(state["loop"])
            transport.load_state_dict(state["transport"])
            self._recall(state["result"])
            _LOG.info("going on at version %d", self.version)
        while self.version < self.rounds:
            self._turn(self.loop.turn())
        self._wait_for_tests()
        in_order = sorted(self.result.evaluate_metrics_clientapp.items())  # slow clients answer later than others
        self.result.evaluate_metrics_clientapp = dict(in_order)
        self.result.arrays = self._arrays()
        return self.result

    @property
    def version(self) -> int:
        return self.loop.algorithm.version

    def close(self) -> None:
        self.transport.close()
        if self.transport.log:
            self.transport.log.close()

    def _prepare(self) -> dict[str, Any] | None:
        """Make the folder, or find what was saved in it."""
        folder = self.strategy.folder
        if folder is None:
            return None
        (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
        state = checkpoint.load(folder / "checkpoint", "cpu")
        self.transport.log = TripLog(folder)
        if state is None:
            self.transport.log.cut(0, 0)
            return None
        if state["identity"] != self._identity():
            raise RunFolderError(f"{folder} holds a run with another model or algorithm")
        self.nodes.clients = state["clients"]
        return state

    def _identity(self) -> str:
        return f"{self.strategy.algorithm!r} {self.strategy.dispatch!r} {self.wire.layout.fingerprint}"

    def _turn(self, outcome: Outcome) -> None:
        if (
            isinstance(outcome.event, Arrival) and not self.strategy.private
        ):  # what they tell of their data is not hidden
            self._trained.append(self.transport.numbers)
        if not outcome.stepped:
            return
        version = self.version
        if self._trained and (mean := _mean(self._trained)) is not None:
            self.result.train_metrics_clientapp[version] = mean
        self._trained = []
        told = self.result.train_metrics_clientapp.get(version) or privacy.words(self.loop.algorithm)
        _LOG.info("version %d of %d after %.1f s: %s", version, self.rounds, outcome.now, told)
        if version % self.strategy.evaluate_every == 0 or version == self.rounds:
            self._test_here(version)
            self._test_on_clients(version)
        self._save()

    # Tests -----------------------------------------------------------------------------------------------------

    def _arrays(self) -> ArrayRecord:
        return self.wire.arrays(self.loop.algorithm.x, _buffers(self.loop))

    def _test_here(self, version: int) -> None:
        if self.evaluate_fn is None:
            return
        found = self.evaluate_fn(version, self._arrays())
        if found is not None:
            self.result.evaluate_metrics_serverapp[version] = found
            _LOG.info("version %d, server: %s", version, found)

    def _test_on_clients(self, version: int) -> None:
        """Ask some clients in turn; one at work answers when it is through.  The last version is always asked about."""
        there = sorted(self.nodes.online if version == self.rounds else self.nodes.available)
        turn = [c for c in there if c >= self._tested] + [c for c in there if c < self._tested]
        for client in turn[: self.strategy.evaluate_clients]:
            content = RecordDict(
                {"arrays": self._arrays(), "config": ConfigRecord({**self.evaluate_config, "server-round": version})}
            )
            self._testing[version] = self._testing.get(version, 0) + 1
            self.transport.ask(client, content, MessageType.EVALUATE, lambda reply: self._tested_on(version, reply))
            self._tested = client + 1

    def _tested_on(self, version: int, reply: RecordDict | None) -> None:
        self._testing[version] -= 1
        if reply is not None:
            self._tests.setdefault(version, []).append(metrics(reply))
        if self._testing[version] == 0 and (mean := _mean(self._tests.get(version, []))) is not None:
            self.result.evaluate_metrics_clientapp[version] = mean
            _LOG.info("version %d, clients: %s", version, mean)

    def _wait_for_tests(self) -> None:
        deadline = time.monotonic() + self.transport.timeout
        while any(self._testing.values()) and time.monotonic() < deadline:
            self.transport.receive()

    # What is kept ----------------------------------------------------------------------------------------------

    def _save(self) -> None:
        if self.strategy.folder is None:
            return
        checkpoint.save(
            self.strategy.folder / "checkpoint",
            {
                "identity": self._identity(),
                "clients": self.nodes.clients,
                "loop": self.loop.state_dict(),
                "transport": self.transport.state_dict(),
                "result": {
                    name: {version: dict(record) for version, record in getattr(self.result, name).items()}
                    for name in RESULTS
                },
            },
        )

    def _recall(self, saved: Mapping[str, Mapping[int, dict[str, Any]]]) -> None:
        for name in RESULTS:
            getattr(self.result, name).update({version: MetricRecord(r) for version, r in saved[name].items()})


RESULTS = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


def _mean(replies: Sequence[Mapping[str, Any]]) -> MetricRecord | None:
    """The mean of what all replies have, weighted by num-examples, as Flower's own strategies do it."""
    known = [r for r in replies if r.get("num-examples")]
    if not known:
        return None
    names = [n for n in known[0] if n != "num-examples" and all(isinstance(r.get(n), (int, float)) for r in known)]
    total = sum(r["num-examples"] for r in known)
    return MetricRecord({n: sum(r[n] * r["num-examples"] for r in known) / total for n in names})
