"""One run of an experiment: its session, its evaluations, its callbacks and its files."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import pathlib
import threading
import time
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from offbeat.client.evaluation import EvaluationInterrupted, TestResult
from offbeat.errors import ConfigError, DivergenceError, RunFolderError
from offbeat.executors.base import TrainingOutcome
from offbeat.messages import Job, Update
from offbeat.runs.assembly import Assembly
from offbeat.runs.callbacks import Callback, CallbackList, RunOutcome
from offbeat.runs.checkpoint_pacing import CheckpointPacer
from offbeat.runs.delays import Delays
from offbeat.runs.evaluations import Evaluations
from offbeat.runs.folder import Origin, RunFolder, UpdateBuffer, listed, read_updates
from offbeat.runs.hooks import installed_hooks
from offbeat.runs.info import run_info
from offbeat.runs.interrupt import reason_of
from offbeat.runs.models import Models
from offbeat.runs.records import Records
from offbeat.runs.result import ProgressSnapshot, RunCounters, RunResult, Watch, row
from offbeat.runs.setting import setting
from offbeat.runs.summary import evaluation_row, summarize
from offbeat.server.events import Arrival, Lost, Outcome
from offbeat.server.loop import Loop
from offbeat.server.session import RunTransport, ServerSession, ServerSettings
from offbeat.simulation.attack_simulation import AttackSimulator
from offbeat.simulation.transport import SimulatedTransport

_LOG = logging.getLogger("offbeat")
WATCH_SECONDS = 0.1
MALFORMED = ("wrong-type", "wrong-size", "wrong-extra")  # refusals that a mistake in a client rule causes
FRUITLESS = 100_000  # events in a row without an accepted update, after which a run fails


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
        self.counters, self.delays = RunCounters(), Delays()
        self.log = UpdateBuffer()  # of a run without a folder
        this = weakref.proxy(self)  # no cycle: a run that is dropped closes its files at once
        self.evaluations = Evaluations(assembly, lambda line, result: this.evaluated(line, result))
        self.records = Records(folder)
        self._ended = False
        self._stop: str | None = None  # why the run ends before its last round
        self._fruitless = 0  # events in a row without an accepted update
        self._wall_before = 0.0
        self._started = self._shown = time.monotonic()
        self.assembly.evaluate.stopping = self.interrupted.is_set
        self.assembly.evaluate.progress = lambda done, count: this.evaluating(done / count)
        self.session = ServerSession(
            settings or assembly.server_settings(folder),
            self.transport,
            this,
            rounds=experiment.rounds,
            evaluate_every=experiment.evaluation.every,
        )
        self.models = Models(assembly, self.session, simulated=not self.transport.real_time)

    @property
    def loop(self) -> Loop:
        """The server loop."""
        return self.session.loop

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The evaluations so far."""
        return self.evaluations.lines

    @property
    def folder(self) -> RunFolder | None:
        """The open run folder, if the run writes one."""
        return self.records.folder

    # Progress --------------------------------------------------------------------------------------------------

    def advance(self, runs: int) -> Generator[list[Job], list[TrainingOutcome], RunResult]:
        """Run to the end; yield the jobs that must be trained and continue with their outcomes.

        The caller (`drive.py`) can train the jobs of several runs at once.

        Args:
            runs: Number of runs that are driven together; all wait while one of them writes a checkpoint.
        """
        with self._failing():
            with contextlib.suppress(EvaluationInterrupted):
                return (yield from self._advance(runs))
            return self._interrupt(complete=False)

    def _advance(self, runs: int) -> Generator[list[Job], list[TrainingOutcome], RunResult]:
        installed_hooks().on_begin(self)
        self.callbacks.on_run_begin(lambda: run_info(self))
        self._started = time.monotonic()
        if not self.metrics:
            self.session.start()
        self._shown = self._started
        pacer = CheckpointPacer(runs, self._checkpoint_bytes, self._started)
        while not self.session.finished and not self.interrupted.is_set():
            while jobs := self.transport.wanted():
                self.transport.deliver(_updates((yield jobs)))
            installed_hooks().before_turn(self)
            stepped = self.session.turn().stepped
            now = time.monotonic()
            if now - self._shown > WATCH_SECONDS:
                self._show()
            if self.folder:
                due = pacer.due(now) or (self.checkpoint_every_version and stepped)
                if installed_hooks().checkpoint_due(self, due):
                    self._checkpoint()
                    pacer.written(now, time.monotonic())
        stopped = self.interrupted.is_set() and not self.session.finished
        return self._interrupt() if stopped else self._finish()

    def record(self, outcome: Outcome) -> None:
        """Count a turn of the loop and log its update."""
        if outcome.refused in MALFORMED and not self.transport.untrusted:
            raise ConfigError(self._malformed(outcome), key="client")
        accepted = isinstance(outcome.event, Arrival) and outcome.refused is None
        self._fruitless = 0 if accepted else self._fruitless + 1
        if self._fruitless > FRUITLESS and not self.transport.real_time:
            raise ConfigError(
                f"no update was accepted in {FRUITLESS:,} consecutive events: jobs were lost, delayed or rejected; "
                "check environment.trip_timeout, environment.loss, environment.availability and validation",
                key="environment",
            )
        self.counters.count(outcome)
        self.delays.count(outcome, self.loop.algorithm.update_cache)
        if isinstance(outcome.event, (Arrival, Lost)):
            (self.folder.updates if self.folder else self.log).append(row(outcome))

    def _malformed(self, outcome: Outcome) -> str:
        """Return what is wrong with an update that an honest client has trained."""
        assert isinstance(outcome.event, Arrival)
        rule, extra = self.experiment.client, outcome.event.update.extra
        sent = ", ".join(f"{name} {list(value.shape)}" for name, value in extra.items()) or "nothing"
        x = list(self.session.x.shape)
        return (
            f"the update of client {outcome.event.job.client} is refused ({outcome.refused}): with Δ, "
            f"{type(rule).__name__} must send {', '.join(rule.sends) or 'no vectors'}, each a vector like x, {x}; "
            f"it sends {sent}"
        )

    def finished(self) -> bool:
        """Return whether the virtual time is over, the budget is used up, or the run was asked to stop."""
        limit = self.experiment.time_limit
        late = limit is not None and self.transport.next_at > limit
        return late or self._stop is not None or self._used_up() is not None

    def _used_up(self) -> str | None:
        budget = self.experiment.budget
        return None if budget is None else budget.used_up(self.counters)

    def stop(self, reason: str) -> None:
        """End the run after the current turn; it counts as finished."""
        self._stop = self._stop or reason

    def evaluate(self, version: int) -> None:
        """Start an evaluation."""
        row = evaluation_row(self._timed(), self.transport, self.assembly.executor, self.loop.algorithm)
        models = functools.partial(self.models.of, stopping=self.interrupted.is_set) if self.models.per_client else None
        self.evaluations.start(self.session.x, self.session.buffers, {"version": version} | row, models)

    def evaluated(self, line: dict[str, Any], result: TestResult) -> None:
        """Record an evaluation, and stop if it says so."""
        self._stop_early()
        if self.folder:
            self.folder.metric(line)
            self.folder.client_metrics(line, result.per_client)
            self.folder.label_metrics(line, result.per_label)
        self.callbacks.on_evaluation(line | _grouped(result))
        self._show()

    def _stop_early(self) -> None:
        if (reason := self.evaluations.stop_reason()) is not None:
            self.stop(reason)

    def _timed(self) -> RunCounters:
        self.counters.wall_seconds = self._wall_before + time.monotonic() - self._started
        return self.counters

    def evaluating(self, share: float) -> None:
        """Show the progress of an evaluation that takes long."""
        if time.monotonic() - self._shown > WATCH_SECONDS:
            self._show(share)

    def _show(self, testing: float | None = None) -> None:
        self._shown = time.monotonic()
        experiment, counters, main = self.experiment, self._timed(), self.experiment.task.main
        limit, real_time = experiment.time_limit, self.transport.real_time
        used = experiment.budget.share(counters) if experiment.budget is not None else None
        self.watch(ProgressSnapshot(counters, experiment.rounds, limit, self.metrics, real_time, main, testing, used))

    # End ------------------------------------------------------------------------------------------------------

    def _finish(self) -> RunResult:
        limit = self.experiment.time_limit
        self._stop = self._stop or self._used_up()
        if self._stop is None and self.counters.version < self.experiment.rounds and limit is not None:
            self.counters.virtual_seconds = limit  # no more events until then
        self._warn_of_rounds()
        self.evaluations.settle()
        if self.metrics[-1]["version"] != self.counters.version:
            self.evaluate(self.counters.version)
            self.evaluations.settle()
        installed_hooks().before_finish(self)
        summary = self.summary()
        personal = self.models.personal()
        self.records.finish(self.models.module, personal, summary)
        self._end(RunOutcome("finished", summary))
        installed_hooks().on_finish(self)
        return dataclasses.replace(self._result(summary), personal=personal)

    def _warn_of_rounds(self) -> None:
        """Warn if the rounds ended the run although most of its budget is left."""
        budget, rounds = self.experiment.budget, self.experiment.rounds
        if budget is not None and self._stop is None and (share := budget.share(self.counters)) < 0.9:
            _LOG.warning("all %s rounds are done with %.0f %% of the budget; raise rounds", f"{rounds:,}", 100 * share)

    def _interrupt(self, complete: bool = True) -> RunResult:
        """End an interrupted run.

        Args:
            complete: Whether the last turn is complete, so that a checkpoint can be taken; a run that was interrupted
                in the middle of an evaluation resumes from its last checkpoint.
        """
        self.evaluations.settle()
        if self.folder and complete:
            self._checkpoint()
        self.records.interrupt(self.counters.version, reason_of(self.interrupted))
        summary = self.summary()
        self._end(RunOutcome("interrupted", summary))
        return self._result(summary, interrupted=True)

    def abandon(self) -> None:
        """End a run that has not ended, as after a second Ctrl-C; it resumes from its last checkpoint."""
        if not self._ended:
            with contextlib.suppress(OSError):
                self.records.interrupt(self.counters.version, reason_of(self.interrupted))
            self._end(RunOutcome("interrupted", self.summary()))

    def _end(self, outcome: RunOutcome) -> None:
        self._ended = True
        self.callbacks.on_run_end(outcome)

    def _result(self, summary: dict[str, Any], interrupted: bool = False) -> RunResult:
        evaluations = self.evaluations
        path = self.records.path
        return RunResult(
            self.loop.algorithm.x, summary, self.metrics, self.models.snapshot(),
            self.log.rows if path is None else functools.partial(read_updates, path), path, interrupted,
            evaluations.client_rows, evaluations.label_rows, setting=setting(self.assembly) if path is None else {},
        )  # fmt: skip

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Mark a run that raises an error as failed, with the reason."""
        try:
            yield
        except Exception as error:
            self.records.fail(error, self.counters.version, new=len(self.metrics) < 2)
            self._end(RunOutcome("failed", error=error))
            if self.folder and isinstance(error, OSError):
                raise RunFolderError(f"cannot write the run folder: {error}") from error
            raise

    def summary(self) -> dict[str, Any]:
        """Return the result in figures."""
        found = summarize(self.assembly, self.loop, self.transport, self._timed(), self.metrics, self.delays)
        return found | {"stopped": self._stop}

    # Folder ----------------------------------------------------------------------------------------------------

    def open(self, path: pathlib.Path, config: str, origin: Origin, setting: Mapping[str, Any] | None = None) -> None:
        """Create the folder of a new run."""
        self.records.open(path, config, origin, setting)

    def reopen(self, path: pathlib.Path) -> None:
        """Resume from the newest intact checkpoint; start at the beginning when there is none."""
        with self.records.reopening(path):
            self.session.resume(path, self.experiment.device)
            self.evaluations.restore(*self.records.restore(path))
        self._stop_early()

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, the clients' state and the lengths of the logs."""
        executor, counters = self.assembly.executor.state_dict(), asdict(self._timed())
        delays = self.delays.state_dict()
        return {"executor": executor, "counters": counters, "delays": delays, **self.records.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from saved records, which `reopen` reads."""
        self.records.load_state_dict(state)
        self.assembly.executor.load_state_dict(state["executor"])
        self.counters = RunCounters(**state["counters"])
        self.delays.load_state_dict(state["delays"])
        self._wall_before = self.counters.wall_seconds

    def identity(self) -> str:
        """Return a hash of config and model, with which a checkpoint must agree."""
        context = self.assembly.context
        layouts = context.layout.fingerprint + context.buffers.fingerprint
        return self.records.identity(layouts + context.fixed_fingerprint)

    def _checkpoint(self) -> None:
        assert self.folder
        self.evaluations.settle()
        self.folder.updates.flush()
        self.session.save(self.folder.path)

    def _checkpoint_bytes(self) -> int:
        """Estimate the size of a checkpoint: caches, client state, and two vectors per job in flight."""
        runtime = self.assembly.runtime
        in_flight = 8 * runtime.context.layout.dim * len(self.loop.out)
        return self.loop.algorithm.cache_bytes + runtime.state.nbytes + in_flight


def _grouped(result: TestResult) -> dict[str, Any]:
    """Return the values per client and per label for callbacks."""
    tables = {"per_client": result.per_client, "per_label": result.per_label}
    return {name: listed(table) for name, table in tables.items() if table}


def _updates(trained: Sequence[TrainingOutcome]) -> list[Update]:
    """Return the updates, or raise the error of the first client that diverged."""
    for each in trained:
        if isinstance(each, DivergenceError):
            raise each
    return [each for each in trained if isinstance(each, Update)]
