"""One server session: a loop with its evaluations, records and checkpoints, simulated or deployed alike.

`ob.run`, `offbeat deploy` and `AsyncStrategy` build the same session. They differ in the transport, and in the recorder
that evaluates the model and keeps what is worth keeping.
"""

from __future__ import annotations

import copy
import pathlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from offbeat.algorithms import Algorithm
from offbeat.algorithms.workload import Workload
from offbeat.environment import Environment
from offbeat.errors import RunFolderError
from offbeat.messages import Job, Update
from offbeat.schedules import ConstantRate, Schedule
from offbeat.scheduling import Scheduler
from offbeat.server import checkpoint
from offbeat.server.events import Outcome, Transport
from offbeat.server.extensions import BUFFERS, ServerExtension
from offbeat.server.loop import Loop
from offbeat.server.validation import UpdateValidator
from offbeat.vectors import Layout

CACHE_FOLDER = "cache"  # folder of an update cache on disk
CHECKPOINT_FOLDER = "checkpoint"


class RunTransport(Transport, Protocol):
    """A transport for whole runs: it has a state, and in virtual time it asks for jobs to be trained."""

    bytes_down: int
    real_time: bool = False
    """Whether time passes by itself, with real clients whose work cannot be repeated."""

    @property
    def next_at(self) -> float:
        """Time of the next event."""
        return self.now

    def wanted(self) -> list[Job]:
        """Return the jobs that must be trained before the next event."""
        return []

    def deliver(self, updates: Sequence[Update]) -> None:
        """Hand over the updates of wanted jobs."""
        raise AssertionError("no job was wanted")

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return everything in flight."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""


class Recorder(Protocol):
    """Evaluates the model of a session and keeps its records."""

    def record(self, outcome: Outcome) -> None:
        """Take note of one turn of the loop."""

    def evaluate(self, version: int) -> None:
        """Evaluate the current version."""

    def finished(self) -> bool:
        """Return whether the session ends before all rounds are done."""

    def identity(self) -> str:
        """Return a description of config and model; a checkpoint of another identity is refused."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs of the records."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from saved records."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Everything that a server loop is built from, apart from its transport."""

    algorithm: Algorithm
    scheduler: Scheduler
    environment: Environment
    validator: UpdateValidator
    x: Tensor
    """The initial model."""
    clients: int
    seed: int
    workload: Callable[[int], Workload]
    """The work to ask of a client."""
    local_schedule: Schedule = field(default_factory=ConstantRate)
    """The schedule of the local rate."""
    extension: ServerExtension | None = None
    auxiliary_sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of the vectors that an update carries in addition to Δ."""
    outgoing: Callable[[Tensor, int], Tensor] = lambda x, version: x
    """A version of x as clients decode it."""
    stateful: bool = False
    """Whether clients keep state, so that they need to know which updates were accepted."""
    tests_clients: bool = False
    """Whether evaluations need to know which updates were accepted, as they test what clients keep."""
    algorithm_seed: Callable[[Algorithm], int] | None = None
    """The seed of the server's own draws, where it is not that of the run."""
    participation: Callable[[int], float | None] | None = None
    """A client's probability of being available; that of the environment when left out."""
    folder: pathlib.Path | None = None
    """Where the run keeps its files."""
    layout: Layout | None = None
    """The tensors of which x consists, if they are known."""

    def loop(self, transport: Transport) -> Loop:
        """Return the loop at the beginning of a run; settings stay as they are and can be used again."""
        algorithm, scheduler = copy.deepcopy(self.algorithm), copy.deepcopy(self.scheduler)
        if self.folder is not None:
            algorithm.use_folder(self.folder / CACHE_FOLDER)  # where a resumed run finds its cache again
        if self.layout is not None:
            algorithm.use_layout(self.layout)
        loop = Loop(
            algorithm=algorithm,
            scheduler=scheduler,
            environment=self.environment,
            transport=transport,
            clients=self.clients,
            workload=self.workload,
            seed=self.seed,
            extension=self.extension,
            validator=self.validator,
            auxiliary_sizes=self.auxiliary_sizes,
            outgoing=self.outgoing,
            tracks_acceptance=self.stateful,
            tests_clients=self.tests_clients,
        )
        seed = self.seed if self.algorithm_seed is None else self.algorithm_seed(algorithm)
        participation = self.participation or self.environment.availability.probability_of
        algorithm.start(self.x, self.clients, seed, participation, scheduler.updates, self.local_schedule)
        if self.extension is not None:
            self.extension.start(self.x, self.clients)
        return loop


class ServerSession:
    """A loop on its way through a run: turns, evaluations, checkpoints.

    Args:
        settings: What the loop is built from.
        transport: Simulated or real.
        recorder: Evaluates and records.
        rounds: Versions to make.
        evaluate_every: Versions between two evaluations; the last version is always evaluated.
    """

    def __init__(
        self,
        settings: ServerSettings,
        transport: RunTransport,
        recorder: Recorder,
        *,
        rounds: int,
        evaluate_every: int,
    ) -> None:
        self.loop, self.transport, self.recorder = settings.loop(transport), transport, recorder
        self.rounds, self.evaluate_every = rounds, evaluate_every

    @property
    def version(self) -> int:
        """The current version of the model."""
        return self.loop.algorithm.version

    @property
    def x(self) -> Tensor:
        """The current model."""
        return self.loop.algorithm.x

    @property
    def buffers(self) -> Tensor | None:
        """The model's running statistics, if it has any."""
        return self.loop.extension.extra().get(BUFFERS) if self.loop.extension is not None else None

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, or the session ended before."""
        return self.version >= self.rounds or self.recorder.finished()

    def start(self) -> None:
        """Send the first jobs and evaluate the initial model."""
        self.loop.start()
        self.recorder.evaluate(0)

    def turn(self) -> Outcome:
        """Handle one event, record it, and evaluate where a version is due."""
        outcome = self.loop.turn()
        self.recorder.record(outcome)
        if outcome.stepped and (self.version % self.evaluate_every == 0 or self.finished):
            self.recorder.evaluate(self.version)
        return outcome

    def save(self, folder: pathlib.Path) -> None:
        """Write a checkpoint into a run folder."""
        state = {
            "identity": self.recorder.identity(),
            "recorder": self.recorder.state_dict(),
            "loop": self.loop.state_dict(),
            "transport": self.transport.state_dict(),
        }
        checkpoint.save(folder / CHECKPOINT_FOLDER, state)

    def resume(self, folder: pathlib.Path, device: str = "cpu") -> bool:
        """Continue from the newest intact checkpoint of a run folder.

        Args:
            folder: The run folder.
            device: Where tensors are loaded.

        Returns:
            Whether there was a checkpoint; without one the session starts at the beginning.

        Raises:
            RunFolderError: The checkpoint is of another experiment or model.
        """
        (folder / CHECKPOINT_FOLDER).mkdir(parents=True, exist_ok=True)
        state = checkpoint.load(folder / CHECKPOINT_FOLDER, device)
        if state is None:
            return False
        if state["identity"] != self.recorder.identity():
            raise RunFolderError(f"{folder}: the config or the model has changed since the last checkpoint")
        self.recorder.load_state_dict(state["recorder"])
        self.loop.load_state_dict(state["loop"])
        self.transport.load_state_dict(state["transport"])
        return True
