"""What every server rule is: a direction v, and a step of the server's optimizer along it."""

from __future__ import annotations

import pathlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from torch import Tensor

from offbeat.algorithms.network import Network
from offbeat.algorithms.optimizers import Plain, ServerOptimizer
from offbeat.algorithms.workload import Device, Workload
from offbeat.errors import ConfigError
from offbeat.messages import Job, Update
from offbeat.options import Options, Positive
from offbeat.stateful import Stateful


class Settings(Protocol):
    """The parts of an experiment that a rule may check."""

    @property
    def client(self) -> Any:
        """The client rule."""

    @property
    def scheduler(self) -> Any:
        """The scheduler."""

    @property
    def compression(self) -> Any:
        """The codecs."""

    @property
    def environment(self) -> Any:
        """Delays, availability and local work."""


@dataclass(kw_only=True)
class Algorithm(Options, Stateful, ABC):
    """A server rule: small and stateful, like an optimizer of torch.optim.

    The rule says *where to*; *when* the server steps is the scheduler's business.  Between two steps the server hands
    over what arrives, in order, through `receive`; `pseudo_gradient` then gives v and forgets what it has used.
    """

    eta: Positive = 1.0
    """Server rate η."""
    optimizer: ServerOptimizer = field(default_factory=Plain)
    """What the server does with v; by itself x ← x + η·v."""

    schedulers: ClassVar[tuple[str, ...]]
    """Names of the schedulers under which the rule makes sense; the first is its own."""
    single_step: ClassVar[bool] = False
    """Whether the rule is defined for a single local step only."""
    base_state_names: ClassVar[tuple[str, ...]] = ("x", "version", "received", "optimizer")

    client_rule: ClassVar[str | None] = None
    """The client rule that the algorithm's other half is, where there is one."""

    def start(
        self,
        x: Tensor,
        clients: int,
        seed: int = 0,
        participation: Callable[[int], float | None] = lambda _: None,
        updates: int | None = None,
    ) -> None:
        """Begin at x with N clients, each awake with a probability that may be known, and so many updates a step, if
        their number is fixed.  Forgets any earlier run."""
        self.participation = participation
        self.updates = updates
        self.x = x
        self.version = 0
        self.clients = clients
        self.seed = seed
        self.received = 0
        self.optimizer.start(x)
        self.reset()

    @abstractmethod
    def reset(self) -> None:
        """Set up the rule's own state; x, clients, seed and updates are there."""

    @abstractmethod
    def accumulate(self, job: Job, update: Update) -> None:
        """Take in one update.  `job` is what it answers: job.x is the model that the client had pulled."""

    @abstractmethod
    def pseudo_gradient(self) -> Tensor | None:
        """v, from what was accumulated since the last step (at least one update); None where the rule still waits."""

    def validate(self, experiment: Settings) -> None:
        """Check that an experiment suits the rule; override to add checks, and call `super().validate`.

        Args:
            experiment: The experiment before any data is loaded.

        Raises:
            ConfigError: A setting does not suit the rule.
        """
        rule = type(self).__name__
        if self.single_step and experiment.client.steps != 1:
            raise ConfigError(f"{rule} is defined for one local step: give steps = 1", key="client.steps")
        if (self.single_step or self.plans) and not experiment.environment.local_work.exact:
            raise ConfigError(
                f"{rule} determines the number of local steps: leave local_work out", key="environment.local_work"
            )
        if self.client_rule is not None and experiment.client.name != self.client_rule:
            raise ConfigError(
                f"{rule} is the server of the client rule {self.client_rule!r}: give name = {self.client_rule!r}",
                key="client.name",
            )

    def validate_participation(self, clients: int, participation: Callable[[int], float | None]) -> None:
        """Check what is known about the clients' participation once the data is loaded.

        Args:
            clients: The number of clients.
            participation: A client's probability of being available, or None where it is unknown.

        Raises:
            ConfigError: The rule needs to know more.
        """

    def workload(self, device: Device) -> Workload | None:
        """Plan a client's work; None leaves steps and compression to the client rule and the codec.

        Args:
            device: What is known about the client.
        """
        return None

    def describe_plan(self, devices: Sequence[Device]) -> dict[str, Any]:
        """Return what a report draws of the planned work.

        Args:
            devices: All devices.
        """
        return {}

    @property
    def plans(self) -> bool:
        """Whether the rule plans its clients' work."""
        return type(self).workload is not Algorithm.workload

    def use_folder(self, folder: pathlib.Path) -> None:
        """Keep files, such as an update cache on disk, in a folder of the run."""
        cache = getattr(self, "cache", None)
        if cache is not None:
            cache.use_folder(folder)

    def network(self) -> Network | None:
        """What the clients do among themselves, for rules in which they talk to each other."""
        return None

    def rate(self) -> float:
        """The server rate of this step."""
        return self.eta

    def local_rate(self) -> float:
        """What the local rate of a job sent now is multiplied by."""
        return 1.0

    def receive(self, job: Job, update: Update) -> None:
        self.accumulate(job, update)
        self.received += 1

    def tau(self, job: Job) -> int:
        """τ: versions between the one that the client pulled and the one its update meets."""
        return self.version - job.version

    def step(self) -> None:
        """The next version.  x becomes a new tensor, so jobs in flight keep theirs; with nothing received x stays."""
        if self.received:
            v = self.pseudo_gradient()
            if v is not None:
                self.x = self.optimizer.step(self.x, v, self.rate())
            self.received = 0
        self.version += 1
