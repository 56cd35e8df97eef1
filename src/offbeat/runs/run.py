"""One run of an experiment: its session, its records and its folder."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import pathlib
import shutil
import threading
import time
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from torch import nn

from offbeat.client.evaluation import EvaluationInterrupted, Score
from offbeat.errors import ConfigError, DivergenceError, OffbeatError, RunFolderError
from offbeat.executors.base import TrainingOutcome
from offbeat.files import write_atomic, write_json
from offbeat.messages import Job, Update
from offbeat.runs import privacy
from offbeat.runs.assembly import Assembly
from offbeat.runs.callbacks import Callback, CallbackList, RunInfo, RunOutcome
from offbeat.runs.checkpoint_pacing import CheckpointPacer
from offbeat.runs.fairness import client_rows, columns, fairness
from offbeat.runs.folder import (
    CONFIG,
    METRICS,
    MODEL,
    SUMMARY,
    UPDATES,
    Origin,
    RunFolder,
    name_of,
    read_client_metrics,
    read_metrics,
    read_status,
    write_status,
)
from offbeat.runs.hooks import installed_hooks
from offbeat.runs.result import ProgressSnapshot, Result, RunCounters, Watch, algorithm_name, row
from offbeat.runs.summary import reaches, summarize
from offbeat.server import checkpoint
from offbeat.server.events import Arrival, Lost, Outcome
from offbeat.server.loop import Loop
from offbeat.server.session import CACHE_FOLDER, CHECKPOINT_FOLDER, RunTransport, ServerSession, ServerSettings
from offbeat.simulation.attack_simulation import AttackSimulator
from offbeat.simulation.transport import SimulatedTransport

WATCH_SECONDS = 0.1
FRUITLESS = 100_000  # events in a row without an accepted update, after which a run fails


def server_settings(assembly: Assembly, folder: pathlib.Path | None = None) -> ServerSettings:
    """Return the server's settings for a simulated run of an experiment.

    Args:
        assembly: The experiment.
        folder: Where the run keeps its files.
    """
    experiment, context, runtime = assembly.experiment, assembly.context, assembly.runtime
    return ServerSettings(
        algorithm=experiment.algorithm,
        scheduler=experiment.scheduler,
        environment=assembly.environment,
        validator=experiment.validation,
        x=context.layout.read(context.module),
        clients=context.data.clients,
        seed=experiment.seed,
        workload=assembly.workload,
        local_schedule=experiment.client.schedule,
        extension=runtime.server_extension(),
        auxiliary_sizes=runtime.auxiliary_sizes(),
        outgoing=runtime.outgoing,
        stateful=runtime.stateful,
        folder=folder,
    )


class Run:
    """One run of an experiment: the recorder of its session, with metrics, counters, callbacks and a folder.

    Args:
        assembly: The experiment.
        interrupted: Stops the run between two turns when set.
        watch: Receives snapshots of the progress.
        folder: Where the run keeps its files; `open` or `reopen` starts writing there.
        transport: The transport; by default a simulated one in virtual time.
        settings: The server's settings; by default those of a simulation.
        callbacks: Receive the run's evaluations and its end.
        checkpoint_every_version: Write a checkpoint after every server step, for work that cannot be repeated.
    """

    def __init__(
        self,
        assembly: Assembly,
        *,
        interrupted: threading.Event | None = None,
        watch: Watch | None = None,
        folder: pathlib.Path | None = None,
        transport: RunTransport | None = None,
        settings: ServerSettings | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoint_every_version: bool = False,
    ) -> None:
        experiment = assembly.experiment
        self.assembly, self.experiment = assembly, experiment
        self.interrupted = interrupted or threading.Event()
        self.watch = watch or (lambda _: None)
        self.callbacks = CallbackList(callbacks)
        self.checkpoint_every_version = checkpoint_every_version
        self.transport = transport or SimulatedTransport(
            assembly.environment,
            assembly.executor,
            experiment.seed,
            AttackSimulator.of(assembly.environment.attack, assembly.runtime, assembly.attackers),
        )
        self.counters = RunCounters()
        self.metrics: list[dict[str, Any]] = []
        self.folder: RunFolder | None = None
        self._pending: tuple[Score, dict[str, Any]] | None = None  # an evaluation whose figures are not read yet
        self.client_metrics: list[dict[str, Any]] = []
        self._target = experiment.evaluation.target_of(experiment.task)
        self._stop: str | None = None  # why the run ends before its last round
        self._fruitless = 0  # events in a row without an accepted update
        self._restored: dict[str, Any] = {}  # the records of the checkpoint that the run resumes from
        self._path: pathlib.Path | None = folder
        self._wall_before = 0.0
        self._started = time.monotonic()
        self.assembly.evaluate.stopping = self.interrupted.is_set
        self.session = ServerSession(
            settings or server_settings(assembly, folder),
            self.transport,
            weakref.proxy(self),  # no cycle: a run that is dropped closes its files at once
            rounds=experiment.rounds,
            evaluate_every=experiment.evaluation.every,
        )

    @property
    def loop(self) -> Loop:
        """The server loop."""
        return self.session.loop

    # Progress --------------------------------------------------------------------------------------------------

    def advance(self, runs: int) -> Generator[list[Job], list[TrainingOutcome], Result]:
        """Run to the end; yield the jobs that must be trained and continue with their outcomes.

        The caller (`drive.py`) can train the jobs of several runs at once.

        Args:
            runs: Number of runs that are driven together; all wait while one of them writes a checkpoint.
        """
        with self._failing(), contextlib.suppress(EvaluationInterrupted):
            installed_hooks().on_begin(self)
            self.callbacks.on_run_begin(self._info)
            self._started = time.monotonic()
            if not self.metrics:
                self.session.start()
            watched = self._started
            pacer = CheckpointPacer(runs, self._checkpoint_bytes, self._started)
            while not self.session.finished and not self.interrupted.is_set():
                while jobs := self.transport.wanted():
                    self.transport.deliver(_updates((yield jobs)))
                installed_hooks().before_turn(self)
                stepped = self.session.turn().stepped
                now = time.monotonic()
                if now - watched > WATCH_SECONDS:
                    watched = now
                    self._show()
                if self.folder:
                    due = pacer.due(now) or (self.checkpoint_every_version and stepped)
                    if installed_hooks().checkpoint_due(self, due):
                        self._checkpoint()
                        pacer.written(now, time.monotonic())
            stopped = self.interrupted.is_set() and not self.session.finished
            return self._interrupt() if stopped else self._finish()
        return self._interrupt(complete=False)

    def record(self, outcome: Outcome) -> None:
        """Count a turn of the loop and log its update."""
        accepted = isinstance(outcome.event, Arrival) and outcome.refused is None
        self._fruitless = 0 if accepted else self._fruitless + 1
        if self._fruitless > FRUITLESS and not self.transport.real_time:
            raise ConfigError(
                f"no update was accepted in {FRUITLESS:,} consecutive events: jobs were lost, delayed or rejected; "
                "check environment.trip_timeout, environment.loss, environment.availability and validation",
                key="environment",
            )
        self.counters.count(outcome)
        if self.folder and isinstance(outcome.event, (Arrival, Lost)):
            self.folder.updates.append(row(outcome))

    def finished(self) -> bool:
        """Return whether the virtual time is over, or the run was asked to stop."""
        limit = self.experiment.virtual_seconds
        return self._stop is not None or (limit is not None and self.transport.next_at > limit)

    def stop(self, reason: str) -> None:
        """End the run after the current turn; it counts as finished."""
        self._stop = self._stop or reason

    def evaluate(self, version: int) -> None:
        """Start an evaluation; on a GPU its figures are read before the next one, or when they are needed."""
        self._settle()
        score = self.assembly.evaluate(self.session.x, self.session.buffers)
        counters = self._timed()
        line = {
            "version": version,
            "virtual_seconds": counters.virtual_seconds,
            **dict.fromkeys((info.name for info in self.experiment.task.metric_infos()), 0.0),
            "staleness_mean": counters.staleness_mean,
            "staleness_max": counters.staleness_max,
            "updates": counters.updates,
            "bytes_up": counters.bytes_up,
            "bytes_down": self.transport.bytes_down,
            "client_steps": counters.client_steps,
            "wall_seconds": counters.wall_seconds,
            **self.assembly.executor.metrics(),
            **privacy.metrics(self.loop.algorithm),
        }
        self._pending = score, line
        evaluation = self.experiment.evaluation
        if self.experiment.device == "cpu" or evaluation.stop_at_target or evaluation.patience:
            self._settle()

    def _settle(self) -> None:
        """Record the evaluation that was started last."""
        if self._pending is None:
            return
        (score, line), self._pending = self._pending, None
        result = score()
        line |= result.metrics
        if result.per_client:
            line |= fairness(result.per_client, self.experiment.task.main)
            self.client_metrics += client_rows(line, result.per_client, self.assembly.context.data.sizes)
        self.metrics.append(line)
        self._check_stop()
        if self.folder:
            self.folder.metric(line)
            self.folder.client_metrics(line, result.per_client)
        self.callbacks.on_evaluation(line)
        self._show()

    def _check_stop(self) -> None:
        """Stop at the target or when patience is exhausted; the decision depends on the recorded metrics only."""
        evaluation, main = self.experiment.evaluation, self.experiment.task.main
        if evaluation.stop_at_target and self._target is not None and reaches(self.metrics[-1], self._target):
            self.stop("the target was reached")
        values = [line[main.name] if main.higher_is_better else -line[main.name] for line in self.metrics]
        if evaluation.patience is not None and len(values) - 1 - values.index(max(values)) >= evaluation.patience:
            self.stop(f"{main.name} did not improve in {evaluation.patience} evaluations")

    def _timed(self) -> RunCounters:
        self.counters.wall_seconds = self._wall_before + time.monotonic() - self._started
        return self.counters

    def _show(self) -> None:
        experiment, real_time = self.experiment, self.transport.real_time
        counters = self._timed()
        self.watch(
            ProgressSnapshot(
                counters, experiment.rounds, experiment.virtual_seconds, self.metrics, real_time, experiment.task.main
            )
        )

    # End ------------------------------------------------------------------------------------------------------

    def _finish(self) -> Result:
        if (
            self._stop is None
            and self.counters.version < self.experiment.rounds
            and self.experiment.virtual_seconds is not None
        ):
            self.counters.virtual_seconds = self.experiment.virtual_seconds  # no more events until then
        self._settle()
        if self.metrics[-1]["version"] != self.counters.version:
            self.evaluate(self.counters.version)
            self._settle()
        installed_hooks().before_finish(self)
        summary = self.summary()
        if self.folder:
            self._save_model()
            self.folder.close()
            write_json(self.folder.path / SUMMARY, summary)
            settle(self.folder.path)
        self.callbacks.on_run_end(RunOutcome("finished", summary))
        installed_hooks().on_finish(self)
        path = self.folder.path if self.folder else None
        return Result(self.loop.algorithm.x, summary, self.metrics, path, client_metrics=self.client_metrics)

    def _interrupt(self, complete: bool = True) -> Result:
        """End an interrupted run.

        Args:
            complete: Whether the last turn is complete, so that a checkpoint can be taken; a run that was interrupted
                in the middle of an evaluation resumes from its last checkpoint.
        """
        self._settle()
        if self.folder:
            if complete:
                self._checkpoint()
            self.folder.close()
            self.folder.status("interrupted", version=self.counters.version)
        path, summary = self.folder.path if self.folder else None, self.summary()
        self.callbacks.on_run_end(RunOutcome("interrupted", summary))
        return Result(
            self.loop.algorithm.x, summary, self.metrics, path, interrupted=True, client_metrics=self.client_metrics
        )

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Discard the folder of a run that fails before it has produced anything; mark later ones as failed."""
        try:
            yield
        except Exception as error:
            self._fail(error)
            self.callbacks.on_run_end(RunOutcome("failed", error=error))
            if self.folder and isinstance(error, OSError):
                raise RunFolderError(f"cannot write the run folder: {error}") from error
            raise

    def _fail(self, error: Exception) -> None:
        repeatable = not (self.transport.real_time and self.counters.version)
        expected = isinstance(error, OffbeatError | OSError)
        worthless = len(self.metrics) < 2 and repeatable and expected
        if self.folder and self.folder.created and worthless:
            self.folder.discard()
        elif self.folder:
            with contextlib.suppress(OSError):  # the disk itself may be the cause
                self.folder.close()
                reason = str(error) if isinstance(error, OffbeatError | OSError) else f"{type(error).__name__}: {error}"
                self.folder.status("failed", error=reason, version=self.counters.version)

    def summary(self) -> dict[str, Any]:
        """Return the result in figures."""
        return summarize(self.assembly, self.loop, self.transport, self._timed(), self.metrics) | {
            "stopped": self._stop
        }

    def _info(self) -> RunInfo:
        """Return what callbacks know about the run."""
        from offbeat.runs.config import describe

        path = self.folder.path if self.folder else None
        experiment = replace(self.experiment, executor=self.assembly.executor_name)
        name = name_of(path) if path else f"{algorithm_name(experiment.algorithm)}-seed{experiment.seed}"
        run = weakref.ref(self)  # a callback may outlive the run

        def stop() -> None:
            if (alive := run()) is not None:
                alive.stop("a callback asked for it")

        def model() -> nn.Module:
            alive = run()
            assert alive is not None, "the run is over"
            return alive.model()

        lines = [dict(line) for line in self.metrics]
        return RunInfo(name, path, describe(experiment), lines, stop, model)

    def model(self) -> nn.Module:
        """Return a copy of the module with the newest weights and statistics."""
        module, context = copy.deepcopy(self.assembly.context.module), self.assembly.context
        context.layout.write(module, self.session.x)
        if (buffers := self.session.buffers) is not None:
            context.buffers.write(module, buffers)
        return module.eval()

    # Folder ----------------------------------------------------------------------------------------------------

    def open(self, path: pathlib.Path, config: str, origin: Origin, setting: Mapping[str, Any] | None = None) -> None:
        """Create the folder of a new run."""
        self.folder = RunFolder.create(path, config, origin, setting)

    def reopen(self, path: pathlib.Path) -> None:
        """Resume from the newest intact checkpoint; start at the beginning when there is none."""
        try:
            self._reopen(path)
        except OSError as error:
            if self.folder:
                with contextlib.suppress(OSError):
                    self.folder.close()
            raise RunFolderError(f"cannot resume {path}: {error.strerror}") from error

    def _reopen(self, path: pathlib.Path) -> None:
        self._path = path
        self.session.resume(path, self.experiment.device)
        metrics_bytes, update_rows = self._restored.get("metrics_bytes", 0), self._restored.get("update_rows", 0)
        client_bytes = self._restored.get("client_metrics_bytes", 0)
        self.metrics = read_metrics(path, metrics_bytes) if self._restored else []
        sizes = self.assembly.context.data.sizes if client_bytes else np.zeros(0, np.int64)
        for line in read_client_metrics(path, client_bytes) if client_bytes else ():
            self.client_metrics += client_rows(line, columns(line), sizes)
        if self.metrics:
            self._check_stop()
        self.folder = RunFolder(path, metrics_bytes, update_rows, client_metrics_bytes=client_bytes)
        self.folder.status("running")

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, the clients' state and the lengths of the logs."""
        assert self.folder, "only runs with a folder write checkpoints"
        return {
            "executor": self.assembly.executor.state_dict(),
            "counters": asdict(self._timed()),
            "metrics_bytes": self.folder.metrics_bytes,
            "client_metrics_bytes": self.folder.client_metrics_bytes,
            "update_rows": self.folder.updates.rows,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from saved records, which `reopen` reads."""
        assert self._path is not None
        if not (self._path / METRICS).is_file() or not (self._path / UPDATES).is_file():
            raise RunFolderError(f"{self._path} cannot be resumed: {METRICS} or {UPDATES} is missing")
        self._restored = state
        self.assembly.executor.load_state_dict(state["executor"])
        self.counters = RunCounters(**state["counters"])
        self._wall_before = self.counters.wall_seconds

    def identity(self) -> str:
        """Return a hash of config and model, with which a checkpoint must agree."""
        path = self.folder.path if self.folder else self._path
        assert path is not None
        context = self.assembly.context
        fingerprint = context.layout.fingerprint + context.buffers.fingerprint
        return hashlib.sha256((path / CONFIG).read_bytes() + fingerprint.encode()).hexdigest()

    def _checkpoint(self) -> None:
        assert self.folder
        self._settle()
        self.folder.updates.flush()
        self.session.save(self.folder.path)

    def _checkpoint_bytes(self) -> int:
        """Estimate the size of a checkpoint: caches, client state, and two vectors per job in flight."""
        runtime = self.assembly.runtime
        in_flight = 8 * runtime.context.layout.dim * len(self.loop.out)
        return self.loop.algorithm.cache_bytes + runtime.state.nbytes + in_flight

    def _save_model(self) -> None:
        from safetensors.torch import save

        assert self.folder
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.model().state_dict().items()}
        write_atomic(self.folder.path / MODEL, save(tensors))


def settle(path: pathlib.Path) -> None:
    """Complete a run that has a summary but may have been killed right after writing it."""
    if read_status(path).get("state") == "finished":
        return
    shutil.rmtree(path / CACHE_FOLDER, ignore_errors=True)
    checkpoint.clear(path / CHECKPOINT_FOLDER)
    write_status(path, "finished", Origin.of(path))


def _updates(trained: Sequence[TrainingOutcome]) -> list[Update]:
    """Return the updates, or raise the error of the first client that diverged."""
    for each in trained:
        if isinstance(each, DivergenceError):
            raise each
    return [each for each in trained if isinstance(each, Update)]
