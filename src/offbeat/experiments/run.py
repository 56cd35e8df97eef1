"""Run an experiment, or go on with one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import pathlib
import shutil
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor

from offbeat.clients import BUFFERS
from offbeat.engine import Arrival, Forgers, Lost, Simulated
from offbeat.engine.evaluate import Score
from offbeat.engine.executors import Gossip
from offbeat.engine.executors.base import Outcome as Trained
from offbeat.errors import ConfigError, DivergenceError, OffbeatError, RunFolderError
from offbeat.experiments import checkpoint, privacy
from offbeat.experiments.experiment import Assembly
from offbeat.experiments.folder import (
    Origin,
    RunFolder,
    name_of,
    read_json,
    write_atomic,
    write_json,
    write_status,
)
from offbeat.experiments.reality import MEMORY, Carrier, Reality
from offbeat.experiments.result import Glance, Result, Tally, Watch, algorithm_name, row
from offbeat.messages import Job, Update
from offbeat.track import Audience, Callback, Ending, RunInfo

CHECKPOINT_SECONDS = 30.0
CHECKPOINT_SHARE = 0.05  # of the time that may go into writing checkpoints
CHECKPOINT_BYTES = 5e8  # a second that are written, for all that is known before the first
WATCH_SECONDS = 0.1
FRUITLESS = 100_000  # events in a row without an update, after which a run is given up


class Run:
    """One run: the loop, what is recorded of it, and its state on disk."""

    def __init__(
        self,
        assembly: Assembly,
        interrupted: threading.Event,
        watch: Watch | None,
        place: pathlib.Path | None,
        carrier: Carrier | None = None,
        reality: Reality | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        experiment = assembly.experiment
        self.assembly, self.experiment = assembly, experiment
        self.watch = watch or (lambda _: None)
        self.audience = Audience(callbacks)
        self.interrupted = interrupted  # ends the run between two turns
        self.careful = carrier is not None  # real clients' work is not done again: a checkpoint at every version
        self.transport = carrier or Simulated(
            assembly.world, assembly.executor, experiment.seed, Forgers.of(assembly.world.attack, assembly.work)
        )
        self.loop = (reality or Reality.simulated(assembly)).loop(assembly, self.transport, place)
        self.tally = Tally()
        self.metrics: list[dict[str, Any]] = []
        self.folder: RunFolder | None = None
        self._pending: tuple[Score, dict[str, Any]] | None = None  # a test whose figures are not read yet
        self._fruitless = 0  # events in a row that brought no update
        self._wall_before = 0.0
        self._started = time.monotonic()

    # What a run does -------------------------------------------------------------------------------------------

    def advance(self, company: int) -> Generator[list[Job], list[Trained], Result]:
        """Run; whenever jobs must be trained, yield them and go on with what came of them.

        So whoever drives this (`drive.py`) can train the jobs of several runs at once: of `company` many, who all wait
        while one of them writes a checkpoint.
        """
        fresh = not self.metrics
        with self._ending():
            self.audience.begun(self._info)
            self._started = time.monotonic()
            if fresh:
                self.loop.start()
                self._evaluate()
            saved = watched = self._started
            pause, known = CHECKPOINT_SECONDS, False
            while not self._finished() and not self.interrupted.is_set():
                while jobs := self.transport.wanted():
                    self.transport.deliver(_updates((yield jobs)))
                stepped = self._turn()
                now = time.monotonic()
                if now - watched > WATCH_SECONDS:
                    watched = now
                    self._show()
                if self.folder and now - saved > pause and not known:
                    pause, known = _pause(company, self._bytes() / CHECKPOINT_BYTES), True
                if self.folder and (now - saved > pause or (self.careful and stepped)):
                    self._checkpoint()
                    saved = time.monotonic()
                    pause, known = _pause(company, saved - now), True
            stopped = self.interrupted.is_set() and not self._finished()
            return self._interrupt() if stopped else self._finish()

    def _turn(self) -> bool:
        """One turn of the loop; True when there is a new version."""
        outcome = self.loop.turn()
        came = isinstance(outcome.event, Arrival) and outcome.refused is None
        self._fruitless = 0 if came else self._fruitless + 1
        if self._fruitless > FRUITLESS and not self.careful:
            raise ConfigError(
                f"{FRUITLESS:,} trips were given up, waited for or refused in a row without an update; "
                "see world.trip_timeout, world.loss, world.availability and gate",
                key="world",
            )
        self.tally.count(outcome)
        if self.folder and isinstance(outcome.event, (Arrival, Lost)):
            self.folder.updates.append(row(outcome))
        if outcome.stepped and (self.tally.version % self.experiment.evaluation.every == 0 or self._finished()):
            self._evaluate()
        return outcome.stepped

    def _finished(self) -> bool:
        limit = self.experiment.virtual_seconds
        return self.tally.version >= self.experiment.rounds or (limit is not None and self.transport.next_at > limit)

    def _evaluate(self) -> None:
        """Test x.  On a GPU this only begins here; the figures are read before the next test, or when needed."""
        self._settle()
        score = self.assembly.evaluate(self.loop.algorithm.x, self._buffers())
        tally = self._timed()
        line = {
            "version": tally.version,
            "virtual_seconds": tally.virtual_seconds,
            "accuracy": 0.0,
            "loss": 0.0,
            "staleness_mean": tally.staleness_mean,
            "staleness_max": tally.staleness_max,
            "updates": tally.updates,
            "bytes_up": tally.bytes_up,
            "bytes_down": self.transport.bytes_down,
            "client_steps": tally.client_steps,
            "wall_seconds": tally.wall_seconds,
        }
        if isinstance(executor := self.assembly.executor, Gossip):
            line["consensus"] = executor.consensus
        line |= privacy.so_far(self.loop.algorithm)
        self._pending = score, line
        if self.experiment.device == "cpu":
            self._settle()

    def _settle(self) -> None:
        """Record the test that was begun last."""
        if self._pending is None:
            return
        (score, line), self._pending = self._pending, None
        line["accuracy"], line["loss"] = score()
        self.metrics.append(line)
        if self.folder:
            self.folder.metric(line)
        self.audience.evaluated(line)
        self._show()

    def _buffers(self) -> Tensor | None:
        """The model's running statistics, if it has any."""
        return self.loop.half.extra().get(BUFFERS) if self.loop.half is not None else None

    def _timed(self) -> Tally:
        self.tally.wall_seconds = self._wall_before + time.monotonic() - self._started
        return self.tally

    def _show(self) -> None:
        experiment = self.experiment
        self.watch(Glance(self._timed(), experiment.rounds, experiment.virtual_seconds, self.metrics, self.careful))

    # How it ends -----------------------------------------------------------------------------------------------

    def _finish(self) -> Result:
        if self.tally.version < self.experiment.rounds and self.experiment.virtual_seconds is not None:
            self.tally.virtual_seconds = self.experiment.virtual_seconds  # nothing more happens before it
        self._settle()
        if self.metrics[-1]["version"] != self.tally.version:
            self._evaluate()
            self._settle()
        summary = self.summary()
        if self.folder:
            self._save_model()
            self.folder.close()
            write_json(self.folder.path / "summary.json", summary)
            settle(self.folder.path)
        self.audience.ended(Ending("finished", summary))
        return Result(self.loop.algorithm.x, summary, self.metrics, self.folder.path if self.folder else None)

    def _interrupt(self) -> Result:
        self._settle()
        if self.folder:
            self._checkpoint()
            self.folder.close()
            self.folder.status("interrupted", version=self.tally.version)
        path, summary = self.folder.path if self.folder else None, self.summary()
        self.audience.ended(Ending("interrupted", summary))
        return Result(self.loop.algorithm.x, summary, self.metrics, path, interrupted=True)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """A run that fails before it has made anything leaves no folder; a later one is whole and marked as failed."""
        try:
            yield
        except Exception as error:
            if isinstance(error, OffbeatError | OSError):
                self._fail(error)
            self.audience.ended(Ending("failed", error=error))
            if self.folder and isinstance(error, OSError):
                raise RunFolderError(f"cannot write the run folder: {error}") from error
            raise

    def _fail(self, error: Exception) -> None:
        worthless = len(self.metrics) < 2 and not (self.careful and self.tally.version)  # real clients' work is not
        if self.folder and self.folder.created and worthless:
            self.folder.discard()
        elif self.folder:
            with contextlib.suppress(OSError):  # the very disk may be what fails
                self.folder.close()
                self.folder.status("failed", error=str(error), version=self.tally.version)

    def summary(self) -> dict[str, Any]:
        tally, target = self._timed(), self.experiment.evaluation.target
        accuracies = [line["accuracy"] for line in self.metrics]
        last10 = accuracies[-10:]
        reached = [line for line in self.metrics if target is not None and line["accuracy"] >= target]
        wall, executor = tally.wall_seconds, self.assembly.executor
        gossip = {"rho": executor.rho(self.loop.dispatch.places)} if isinstance(executor, Gossip) else {}
        return {
            "algorithm": algorithm_name(self.experiment.algorithm),
            "seed": self.experiment.seed,
            "accuracy": accuracies[-1],
            "accuracy_last10": sum(last10) / len(last10),
            "best_accuracy": max(accuracies),
            "loss": self.metrics[-1]["loss"],
            "target": target,
            "target_seconds": reached[0]["virtual_seconds"] if reached else None,
            "target_bytes_up": reached[0]["bytes_up"] if reached else None,
            "rounds": tally.version,
            "updates": tally.updates,
            "lost": tally.lost,
            "late": tally.late,
            "refused": dict(sorted(tally.refused.items())),
            "virtual_seconds": tally.virtual_seconds,
            "real": self.careful,  # clients, and seconds
            "wall_seconds": wall,
            "client_steps": tally.client_steps,
            "client_steps_per_second": tally.client_steps / wall if wall else 0.0,
            "bytes_up": tally.bytes_up,
            "bytes_down": self.transport.bytes_down,
            "bytes_peer": executor.peer_bytes,
            **gossip,
            "staleness_mean": tally.staleness_mean,
            "staleness_max": tally.staleness_max,
            **privacy.in_all(self.loop.algorithm),
            "clients": self.assembly.work.data.clients,
            "attackers": len(self.assembly.attackers),
            "parameters": self.assembly.work.layout.dim,
            "executor": self.assembly.executor_name,
            "executors_tried": self.assembly.rates,
            "precision": self.experiment.precision,
            "device": self.experiment.device,
        }

    def _info(self) -> RunInfo:
        """What callbacks know of the run."""
        from offbeat.experiments.config import describe

        path = self.folder.path if self.folder else None
        experiment = replace(self.experiment, executor=self.assembly.executor_name)
        name = name_of(path) if path else f"{algorithm_name(experiment.algorithm)}-seed{experiment.seed}"
        return RunInfo(name, path, describe(experiment), [dict(line) for line in self.metrics])

    # What is on disk -------------------------------------------------------------------------------------------

    def open(self, path: pathlib.Path, config: str, origin: Origin, setting: Mapping[str, Any] | None = None) -> None:
        """Begin a new run folder."""
        self.folder = RunFolder.create(path, config, origin, setting)

    def reopen(self, path: pathlib.Path) -> None:
        """Go on where the newest whole checkpoint ends; at the beginning when there is none."""
        try:
            self._reopen(path)
        except OSError as error:
            if self.folder:
                with contextlib.suppress(OSError):
                    self.folder.close()
            raise RunFolderError(f"cannot go on in {path}: {error.strerror}") from error

    def _reopen(self, path: pathlib.Path) -> None:
        (path / "checkpoint").mkdir(exist_ok=True)
        state = checkpoint.load(path / "checkpoint", self.experiment.device)
        lines: list[str] = []
        if state is not None:
            if state["identity"] != self._identity(path):
                raise RunFolderError(f"{path}: config.toml or the model has changed since the last checkpoint")
            if not (path / "metrics.jsonl").is_file() or not (path / "updates.npy").is_file():
                raise RunFolderError(f"{path} cannot be resumed: metrics.jsonl or updates.npy is missing")
            self.loop.load_state_dict(state["loop"])
            self.transport.load_state_dict(state["transport"])
            self.assembly.executor.load_state_dict(state["executor"])
            self.tally = Tally(**state["tally"])
            self._wall_before = self.tally.wall_seconds
            with (path / "metrics.jsonl").open("rb") as file:
                lines = file.read(state["metrics_bytes"]).decode().splitlines()
        self.folder = RunFolder(path, state["metrics_bytes"] if state else 0, state["update_rows"] if state else 0)
        self.metrics = [json.loads(line) for line in lines]
        self.folder.status("running")

    def _identity(self, path: pathlib.Path) -> str:
        """What a checkpoint must agree with."""
        config, work = (path / "config.toml").read_bytes(), self.assembly.work
        return hashlib.sha256(config + (work.layout.fingerprint + work.buffers.fingerprint).encode()).hexdigest()

    def _checkpoint(self) -> None:
        assert self.folder
        self._settle()
        self.folder.updates.flush()
        checkpoint.save(
            self.folder.path / "checkpoint",
            {
                "identity": self._identity(self.folder.path),
                "loop": self.loop.state_dict(),
                "transport": self.transport.state_dict(),
                "executor": self.assembly.executor.state_dict(),
                "tally": asdict(self._timed()),
                "metrics_bytes": self.folder.metrics_bytes,
                "update_rows": self.folder.updates.rows,
            },
        )

    def _bytes(self) -> int:
        """About those of a checkpoint: what server and clients keep, and two vectors for each job that is out."""
        work, memory = self.assembly.work, getattr(self.loop.algorithm, "memory", None)
        kept = sum(value.nbytes for rows in work.kept.values() for value in rows.values())
        return (memory.nbytes if memory is not None else 0) + kept + 8 * work.layout.dim * len(self.loop.out)

    def _save_model(self) -> None:
        from safetensors.torch import save

        assert self.folder
        module = self.assembly.work.module
        self.assembly.work.layout.write(module, self.loop.algorithm.x)
        if (buffers := self._buffers()) is not None:
            self.assembly.work.buffers.write(module, buffers)
        tensors = {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}
        write_atomic(self.folder.path / "model.safetensors", save(tensors))


def _pause(company: int, seconds: float) -> float:
    """How long to wait for the next checkpoint, when each of `company` many takes so long."""
    return max(CHECKPOINT_SECONDS, company * seconds / CHECKPOINT_SHARE)


def settle(path: pathlib.Path) -> None:
    """What is left to do when there is a summary, if anything: a run may have been killed at that moment."""
    if read_json(path / "status.json").get("state") == "finished":
        return
    shutil.rmtree(path / MEMORY, ignore_errors=True)
    checkpoint.clear(path / "checkpoint")
    write_status(path, "finished", Origin.of(path))


def _updates(trained: Sequence[Trained]) -> list[Update]:
    """The run's updates; its first client that diverged ends it."""
    for each in trained:
        if isinstance(each, DivergenceError):
            raise each
    return [each for each in trained if isinstance(each, Update)]
