"""An asynchronous strategy for Flower's server apps: it replaces FedAvg and works with any client app."""

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
from offbeat.flower.log import EventLog
from offbeat.flower.nodes import NodeRegistry, live_environment
from offbeat.flower.replay import ReplayTransport, replay_to
from offbeat.flower.secrets import save_noise_key, server_seed
from offbeat.flower.transport import FlowerTransport, check_algorithm
from offbeat.flower.wire import StateDictFormat, metrics
from offbeat.runs import privacy
from offbeat.scheduling import SCHEDULERS, Scheduler
from offbeat.server import checkpoint
from offbeat.server.events import Arrival, Outcome
from offbeat.server.extensions import BUFFERS, RunningStatistics
from offbeat.server.session import CHECKPOINT_FOLDER, ServerSession, ServerSettings
from offbeat.server.validation import UpdateValidator

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

_LOG = logging.getLogger("flwr")


class AsyncStrategy:
    """Asynchronous federated learning strategy.

    Clients receive the latest model whenever they are idle. The server aggregates updates as the algorithm's scheduler
    decides, without waiting for stragglers. A client app written for Flower's own strategies works unchanged.

    Args:
        algorithm: Server rule, such as `FedBuff()` or `CA2FL(eta=1.0)`.
        concurrency: Number of clients that train at the same time. If left out, the default of the scheduler applies.
        buffer: Number of updates per server step, for schedulers that count updates. If left out, the default of the
            scheduler applies.
        scheduler: Scheduler to use instead of `concurrency` and `buffer`, such as `Periodic(period=60)`. The algorithm
            must support it.
        clients: Maximum number of clients that take part. Defaults to the number of nodes that are online at the
            start. Choose a larger number if nodes join later: algorithms with an update cache divide by it.
        min_nodes: Number of nodes to wait for at the start. Defaults to 2, or to `concurrency` if that is smaller.
        evaluate_every: Number of versions between two evaluations by `evaluate_fn` and on clients. The last version is
            always evaluated.
        evaluate_clients: Number of clients that evaluate a version while training continues. With 0, none do.
        compression: Codec of the updates of client apps that reply with `coded_reply`.
        validation: Limits for updates, such as `UpdateValidator(max_norm=10.0)`. Malformed updates are always
            rejected.
        folder: Folder for checkpoints and the event log. A run that was killed resumes from it when it is started
            again. Without a folder, nothing is saved.
        seed: Seed of the server's random choices.

    Raises:
        ConfigError: The algorithm cannot run on Flower, or the settings do not fit it.
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
        check_algorithm(algorithm, "algorithm")
        if algorithm.client_rule is not None:
            raise ConfigError(
                f"{type(algorithm).__name__} needs the client rule {algorithm.client_rule!r}, which only offbeat's "
                "own client has; use `offbeat deploy`",
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
            raise ConfigError("private noise does not protect metrics of clients; set it to 0", key="evaluate_clients")

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
        """Run the strategy; a drop-in replacement for `start` of Flower's own strategies.

        Args:
            grid: Grid that sends messages to the nodes.
            initial_arrays: Initial model.
            num_rounds: Number of versions of the model to make. A version is one server step.
            timeout: Seconds until a client must have replied, after which its job is lost, and the time to wait for
                `min_nodes` at the start.
            train_config: Config of every training message.
            evaluate_config: Config of every evaluation message.
            evaluate_fn: Evaluates the global model on the server. It receives the version and the arrays.

        Returns:
            Final arrays, and metrics by version.
        """
        wire = StateDictFormat(initial_arrays, train_config or ConfigRecord(), self.compression)
        nodes = NodeRegistry(self.clients or 0)
        transport = FlowerTransport(grid, wire, nodes, timeout)
        run = StrategyRun(self, wire, transport, nodes, num_rounds, evaluate_config or ConfigRecord(), evaluate_fn)
        try:
            return run.run()
        finally:
            run.close()

    def replay(self, initial_arrays: ArrayRecord) -> ArrayRecord:
        """Replay the run in `folder` from its log, up to the last checkpoint.

        Args:
            initial_arrays: Initial model of the run.

        Returns:
            The arrays of the model, which equal those of the run bit for bit.

        Raises:
            ConfigError: The strategy has no folder.
            RunFolderError: The folder has no checkpoint, or the log does not match it.
        """
        if self.folder is None:
            raise ConfigError("a replay needs the folder of the run", key="folder")
        state = checkpoint.load(self.folder / CHECKPOINT_FOLDER, "cpu")
        if state is None:
            raise RunFolderError(f"{self.folder} has no checkpoint")
        wire = StateDictFormat(initial_arrays, ConfigRecord(), self.compression)
        nodes = NodeRegistry(state["recorder"]["clients"])
        loop = self.settings(wire, nodes).loop(ReplayTransport(self.folder, wire, nodes))
        version = state["loop"]["algorithm"]["version"]
        if not replay_to(loop, version):
            raise RunFolderError(
                f"{self.folder}: the log ends at version {loop.algorithm.version}, before version {version} of the "
                "checkpoint"
            )
        buffers = loop.extension.extra().get(BUFFERS) if loop.extension is not None else None
        return wire.arrays(loop.algorithm.x, buffers)

    def settings(self, wire: StateDictFormat, nodes: NodeRegistry) -> ServerSettings:
        """Return the settings of the server loop."""
        privacy.check_statistics(self.algorithm, wire.buffers is not None)
        workload = Workload(0)  # the client app decides
        return ServerSettings(
            algorithm=self.algorithm,
            scheduler=self.scheduler,
            environment=live_environment(nodes),
            validator=self.validation,
            x=wire.x,
            layout=wire.layout,
            clients=nodes.clients,
            seed=self.seed,
            workload=lambda client: workload,
            extension=RunningStatistics(wire.buffers) if wire.buffers is not None else None,
            auxiliary_sizes={BUFFERS: wire.buffers.numel()} if wire.buffers is not None else {},
            algorithm_seed=lambda algorithm: server_seed(algorithm, self.seed, self.folder),
        )


def _scheduler(algorithm: Algorithm, concurrency: int | None, buffer: int | None) -> Scheduler:
    """Return the first of the algorithm's schedulers that has the given settings."""
    given = {name: value for name, value in (("concurrency", concurrency), ("buffer", buffer)) if value is not None}
    for name in algorithm.schedulers:
        if given.keys() <= {field.name for field in dataclasses.fields(SCHEDULERS[name])}:
            return SCHEDULERS[name](**given)
    raise ConfigError(
        f"no scheduler of {type(algorithm).__name__} ({', '.join(algorithm.schedulers)}) has the settings "
        f"{' and '.join(given)}; pass a scheduler",
        key="scheduler",
    )


class StrategyRun:
    """One run of a strategy: the recorder of the session, which collects Flower's result.

    Args:
        strategy: The strategy.
        wire: Format of the messages.
        transport: Sends them.
        nodes: Assignment of nodes to clients.
        rounds: Number of versions to make.
        evaluate_config: Config of evaluation messages.
        evaluate_fn: Evaluates a version on the server.
    """

    def __init__(
        self,
        strategy: AsyncStrategy,
        wire: StateDictFormat,
        transport: FlowerTransport,
        nodes: NodeRegistry,
        rounds: int,
        evaluate_config: ConfigRecord,
        evaluate_fn: EvaluateFn | None,
    ) -> None:
        self.strategy, self.wire, self.transport, self.nodes, self.rounds = strategy, wire, transport, nodes, rounds
        self.evaluate_config, self.evaluate_fn = evaluate_config, evaluate_fn
        self.result = Result()
        self._train_metrics: list[Mapping[str, Any]] = []  # of the updates since the last version
        self._client_metrics: dict[int, list[Mapping[str, Any]]] = {}  # evaluations on clients by version
        self._evaluating: dict[int, int] = {}  # number of clients that have not replied by version
        self._next_evaluator = 0  # the next client to evaluate

    def run(self) -> Result:
        """Run until all versions are made, from the checkpoint if the folder holds one."""
        strategy, transport, folder = self.strategy, self.transport, self.strategy.folder
        saved = self._saved()
        present = transport.start(strategy.min_nodes, transport.timeout)
        self.nodes.clients = saved["clients"] if saved else self.nodes.clients or present
        self.session = ServerSession(
            strategy.settings(self.wire, self.nodes), transport, self, rounds=self.rounds,
            evaluate_every=strategy.evaluate_every
        )  # fmt: skip
        if folder is not None:
            save_noise_key(self.session.loop.algorithm, folder)
        if folder is not None and self.session.resume(folder):
            _LOG.info("resuming at version %d", self.session.version)
        else:
            transport.update_nodes()
            self.session.start()
        while not self.session.finished:
            stepped = self.session.turn().stepped
            if stepped and folder is not None:
                self.session.save(folder)
        self._wait_for_evaluations()
        # Slow clients reply later than others, so versions are not in order.
        self.result.evaluate_metrics_clientapp = dict(sorted(self.result.evaluate_metrics_clientapp.items()))
        self.result.arrays = self._arrays()
        return self.result

    def close(self) -> None:
        """Close the transport and its log."""
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
        self.transport.log = EventLog(folder)
        if state is None:
            self.transport.log.truncate(0, 0)
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
        if isinstance(outcome.event, Arrival) and not self.strategy.private:  # noise does not protect metrics
            self._train_metrics.append(self.transport.reply_metrics)
        if not outcome.stepped:
            return
        version = self.session.version
        if self._train_metrics and (mean := _mean(self._train_metrics)) is not None:
            self.result.train_metrics_clientapp[version] = mean
        self._train_metrics = []
        metrics = self.result.train_metrics_clientapp.get(version) or privacy.describe(self.session.loop.algorithm)
        _LOG.info("version %d of %d after %.1f s: %s", version, self.rounds, outcome.now, metrics)

    def evaluate(self, version: int) -> None:
        """Evaluate a version on the server and, except for the initial model, on clients."""
        self._evaluate_on_server(version)
        if version:
            self._evaluate_on_clients(version)

    # Evaluation ------------------------------------------------------------------------------------------------

    def _arrays(self) -> ArrayRecord:
        return self.wire.arrays(self.session.x, self.session.buffers)

    def _evaluate_on_server(self, version: int) -> None:
        if self.evaluate_fn is None:
            return
        found = self.evaluate_fn(version, self._arrays())
        if found is not None:
            self.result.evaluate_metrics_serverapp[version] = found
            _LOG.info("version %d, evaluated on the server: %s", version, found)

    def _evaluate_on_clients(self, version: int) -> None:
        """Ask some available clients in turn; for the last version also clients that are still training."""
        clients = sorted(self.nodes.online if version == self.rounds else self.nodes.available)
        in_turn = [c for c in clients if c >= self._next_evaluator] + [c for c in clients if c < self._next_evaluator]
        for client in in_turn[: self.strategy.evaluate_clients]:
            content = RecordDict(
                {"arrays": self._arrays(), "config": ConfigRecord({**self.evaluate_config, "server-round": version})}
            )
            self._evaluating[version] = self._evaluating.get(version, 0) + 1
            self.transport.ask(
                client, content, MessageType.EVALUATE, lambda reply: self._receive_evaluation(version, reply)
            )
            self._next_evaluator = client + 1

    def _receive_evaluation(self, version: int, reply: RecordDict | None) -> None:
        self._evaluating[version] -= 1
        if reply is not None:
            self._client_metrics.setdefault(version, []).append(metrics(reply))
        if self._evaluating[version] == 0 and (mean := _mean(self._client_metrics.get(version, []))) is not None:
            self.result.evaluate_metrics_clientapp[version] = mean
            _LOG.info("version %d, evaluated on clients: %s", version, mean)

    def _wait_for_evaluations(self) -> None:
        deadline = time.monotonic() + self.transport.timeout
        while any(self._evaluating.values()) and time.monotonic() < deadline:
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
    """Return the mean of the metrics that all replies have, weighted by num-examples, as Flower's strategies do."""
    known = [r for r in replies if r.get("num-examples")]
    if not known:
        return None
    names = [n for n in known[0] if n != "num-examples" and all(isinstance(r.get(n), (int, float)) for r in known)]
    total = sum(r["num-examples"] for r in known)
    return MetricRecord({n: sum(r[n] * r["num-examples"] for r in known) / total for n in names})
