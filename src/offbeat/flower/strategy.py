"""An asynchronous strategy for Flower's server apps: offbeat's rules in the place of FedAvg, with any client app."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from offbeat.algorithms import Algorithm
from offbeat.algorithms.workload import Workload
from offbeat.compression import Compression
from offbeat.errors import ConfigError, RunFolderError
from offbeat.flower.log import TripLog
from offbeat.flower.nodes import Nodes, live_environment
from offbeat.flower.replay import Replayed, turned
from offbeat.flower.secrets import keep, server_seed
from offbeat.flower.transport import Flower, check_rule
from offbeat.flower.wire import Named, metrics
from offbeat.runs import privacy
from offbeat.scheduling.schedulers import SCHEDULERS, Scheduler
from offbeat.server import checkpoint
from offbeat.server.events import Arrival, Outcome
from offbeat.server.extensions import BUFFERS, RunningStatistics
from offbeat.server.session import CHECKPOINT_FOLDER, ServerSession, ServerSettings
from offbeat.server.validation import UpdateValidator

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

_LOG = logging.getLogger("flwr")


class AsyncStrategy:
    """Clients are sent the latest model whenever they are free; the server steps as the algorithm's scheduler says.

    algorithm        one of offbeat's server rules, such as `CA2FL(eta=1.0)`
    concurrency      clients that train at the same time
    buffer           updates a step, where the scheduler counts them
    scheduler         instead of the two: any scheduler that the algorithm takes, such as `Periodic(period=60)`
    clients          how many take part at most; as many as are there at the start when left out.  Leave room for those
                     that come later: algorithms with a memory divide by this number
    min_nodes        how many are waited for at the start; two, or `concurrency` if that is less
    evaluate_every   versions between two tests by `evaluate_fn` and on clients; the last version is always tested
    evaluate_clients on how many clients a version is tested; none when 0.  Training goes on meanwhile
    compression      how offbeat's own clients code their updates
    gate             bounds for what is let in, such as `UpdateValidator(max_norm=10.0)`; what makes no sense never is
    folder           where checkpoints and the log go; a run that was killed goes on from there when it is started again
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        concurrency: int | None = None,
        buffer: int | None = None,
        scheduler: Scheduler | None = None,
        clients: int | None = None,
        min_nodes: int | None = None,
        evaluate_every: int = 1,
        evaluate_clients: int = 0,
        compression: Compression | None = None,
        validation: UpdateValidator | None = None,
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
        self.scheduler = scheduler or _scheduler(algorithm, concurrency, buffer)
        self.clients, self.seed = clients, seed
        self.min_nodes = min_nodes or min(2, self.scheduler.concurrency or 2)
        self.evaluate_every, self.evaluate_clients = evaluate_every, evaluate_clients
        self.compression, self.validation = compression or Compression(), validation or UpdateValidator()
        self.folder = pathlib.Path(folder) if folder is not None else None
        privacy.check_step(algorithm, self.scheduler, self.validation)
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
        run = StrategyRun(self, wire, transport, nodes, num_rounds, evaluate_config or ConfigRecord(), evaluate_fn)
        try:
            return run.run()
        finally:
            run.close()

    def replay(self, initial_arrays: ArrayRecord) -> ArrayRecord:
        """The run in `folder` once more, from its log: the model that it had come to."""
        assert self.folder is not None, "a replay needs the run's folder"
        state = checkpoint.load(self.folder / CHECKPOINT_FOLDER, "cpu")
        if state is None:
            raise RunFolderError(f"{self.folder} has no checkpoint")
        wire = Named(initial_arrays, ConfigRecord(), self.compression)
        nodes = Nodes(state["recorder"]["clients"])
        loop = self.settings(wire, nodes).loop(Replayed(self.folder, wire, nodes))
        if not turned(loop, state["loop"]["algorithm"]["version"]):
            raise RunFolderError(f"{self.folder}: the log ends at version {loop.algorithm.version}")
        buffers = loop.extension.extra().get(BUFFERS) if loop.extension is not None else None
        return wire.arrays(loop.algorithm.x, buffers)

    def settings(self, wire: Named, nodes: Nodes) -> ServerSettings:
        """Return what the server loop is built from."""
        privacy.check_statistics(self.algorithm, wire.b is not None)
        own = Workload(0)  # as much as the client app does
        return ServerSettings(
            algorithm=self.algorithm,
            scheduler=self.scheduler,
            environment=live_environment(nodes),
            validator=self.validation,
            x=wire.x,
            clients=nodes.clients,
            seed=self.seed,
            workload=lambda client: own,
            extension=RunningStatistics(wire.b) if wire.b is not None else None,
            auxiliary_sizes={BUFFERS: wire.b.numel()} if wire.b is not None else {},
            algorithm_seed=lambda algorithm: server_seed(algorithm, self.seed, self.folder),
        )


def _scheduler(algorithm: Algorithm, concurrency: int | None, buffer: int | None) -> Scheduler:
    """The first of the algorithm's schedulers that has the settings given."""
    given = {name: value for name, value in (("concurrency", concurrency), ("buffer", buffer)) if value is not None}
    for name in algorithm.schedulers:
        if given.keys() <= {field.name for field in dataclasses.fields(SCHEDULERS[name])}:
            return SCHEDULERS[name](**given)
    raise ConfigError(
        f"none of the schedulers of {type(algorithm).__name__} ({', '.join(algorithm.schedulers)}) takes "
        f"{' and '.join(given)}",
        key="scheduler",
    )


class StrategyRun:
    """One run of a strategy: the session's recorder, with Flower's result and metrics."""

    def __init__(
        self, strategy: AsyncStrategy, wire: Named, transport: Flower, nodes: Nodes, rounds: int,
        evaluate_config: ConfigRecord, evaluate_fn: EvaluateFn | None,
    ) -> None:  # fmt: skip
        self.strategy, self.wire, self.transport, self.nodes, self.rounds = strategy, wire, transport, nodes, rounds
        self.evaluate_config, self.evaluate_fn = evaluate_config, evaluate_fn
        self.result = Result()
        self._train_metrics: list[Mapping[str, Any]] = []  # of the updates since the last version
        self._tests: dict[int, list[Mapping[str, Any]]] = {}  # by version, from clients
        self._testing: dict[int, int] = {}  # by version: clients that have not answered
        self._next_tested = 0  # the client that is asked next

    def run(self) -> Result:
        """Run until all versions are made, resuming where the folder holds a checkpoint."""
        strategy, transport, folder = self.strategy, self.transport, self.strategy.folder
        saved = self._saved()
        present = transport.start(strategy.min_nodes, transport.timeout)
        self.nodes.clients = saved["clients"] if saved else self.nodes.clients or present
        self.session = ServerSession(
            strategy.settings(self.wire, self.nodes), transport, self, rounds=self.rounds,
            evaluate_every=strategy.evaluate_every
        )  # fmt: skip
        if folder is not None:
            keep(self.session.loop.algorithm, folder)
        if folder is not None and self.session.resume(folder):
            _LOG.info("resuming at version %d", self.session.version)
        else:
            transport.adopt()
            self.session.start()
        while not self.session.finished:
            stepped = self.session.turn().stepped
            if stepped and folder is not None:
                self.session.save(folder)
        self._wait_for_tests()
        in_order = sorted(self.result.evaluate_metrics_clientapp.items())  # slow clients answer later than others
        self.result.evaluate_metrics_clientapp = dict(in_order)
        self.result.arrays = self._arrays()
        return self.result

    def close(self) -> None:
        """End the transport and its log."""
        self.transport.close()
        if self.transport.log:
            self.transport.log.close()

    def _saved(self) -> dict[str, Any] | None:
        """Create the folder, or return the records of the checkpoint in it."""
        folder = self.strategy.folder
        if folder is None:
            return None
        (folder / CHECKPOINT_FOLDER).mkdir(parents=True, exist_ok=True)
        state = checkpoint.load(folder / CHECKPOINT_FOLDER, "cpu")
        self.transport.log = TripLog(folder)
        if state is None:
            self.transport.log.cut(0, 0)
            return None
        records: dict[str, Any] = state["recorder"]
        return records

    def finished(self) -> bool:
        """Return False: only the number of rounds ends a run."""
        return False

    def identity(self) -> str:
        """Return a description of algorithm, scheduler and model."""
        return f"{self.strategy.algorithm!r} {self.strategy.scheduler!r} {self.wire.layout.fingerprint}"

    def record(self, outcome: Outcome) -> None:
        """Collect the metrics of an update; average them when a version is made."""
        if isinstance(outcome.event, Arrival) and not self.strategy.private:  # metrics are not hidden by noise
            self._train_metrics.append(self.transport.numbers)
        if not outcome.stepped:
            return
        version = self.session.version
        if self._train_metrics and (mean := _mean(self._train_metrics)) is not None:
            self.result.train_metrics_clientapp[version] = mean
        self._train_metrics = []
        metrics = self.result.train_metrics_clientapp.get(version) or privacy.words(self.session.loop.algorithm)
        _LOG.info("version %d of %d after %.1f s: %s", version, self.rounds, outcome.now, metrics)

    def evaluate(self, version: int) -> None:
        """Evaluate a version here and, after the first, on clients."""
        self._test_here(version)
        if version:
            self._test_on_clients(version)

    # Evaluation ------------------------------------------------------------------------------------------------

    def _arrays(self) -> ArrayRecord:
        return self.wire.arrays(self.session.x, self.session.buffers)

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
        turn = [c for c in there if c >= self._next_tested] + [c for c in there if c < self._next_tested]
        for client in turn[: self.strategy.evaluate_clients]:
            content = RecordDict(
                {"arrays": self._arrays(), "config": ConfigRecord({**self.evaluate_config, "server-round": version})}
            )
            self._testing[version] = self._testing.get(version, 0) + 1
            self.transport.ask(client, content, MessageType.EVALUATE, lambda reply: self._tested_on(version, reply))
            self._next_tested = client + 1

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

    # Checkpoints -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the number of clients and the results so far."""
        results = {
            name: {version: dict(record) for version, record in getattr(self.result, name).items()} for name in RESULTS
        }
        return {"clients": self.nodes.clients, "results": results}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from saved results."""
        for name in RESULTS:
            records = {version: MetricRecord(record) for version, record in state["results"][name].items()}
            getattr(self.result, name).update(records)


RESULTS = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


def _mean(replies: Sequence[Mapping[str, Any]]) -> MetricRecord | None:
    """The mean of what all replies have, weighted by num-examples, as Flower's own strategies do it."""
    known = [r for r in replies if r.get("num-examples")]
    if not known:
        return None
    names = [n for n in known[0] if n != "num-examples" and all(isinstance(r.get(n), (int, float)) for r in known)]
    total = sum(r["num-examples"] for r in known)
    return MetricRecord({n: sum(r[n] * r["num-examples"] for r in known) / total for n in names})
