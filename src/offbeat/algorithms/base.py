"""Base class of the server algorithms: a pseudo-gradient v, and a step of the server optimizer along it."""

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
from offbeat.cache import UpdateCache
from offbeat.errors import ConfigError
from offbeat.messages import Job, Update
from offbeat.options import Options, Positive
from offbeat.schedules import ConstantRate, Schedule, as_schedule
from offbeat.stateful import Stateful
from offbeat.vectors import Layout

# Schedulers that an algorithm accepts, by name. The first one is the algorithm's default, so the order matters.
SYNCHRONOUS = ("rounds", "available")
ASYNCHRONOUS = ("buffered", "continuous", "per-arrival", "periodic", "anarchic")
ON_ARRIVAL = ("per-arrival", "continuous", "buffered")
ALL_ROUNDS_FIRST = (*SYNCHRONOUS, *ASYNCHRONOUS)
ALL_AVAILABLE_FIRST = ("available", "rounds", *ASYNCHRONOUS)
ALL_BUFFERED_FIRST = ("buffered", "continuous", "per-arrival", *SYNCHRONOUS, "periodic", "anarchic")
ALL_ANARCHIC_FIRST = ("anarchic", "continuous", "buffered", "per-arrival", *SYNCHRONOUS, "periodic")


class Settings(Protocol):
    """The parts of an experiment that an algorithm may check."""

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
    """Interface for server algorithms. An algorithm is small and stateful, like an optimizer of `torch.optim`.

    The algorithm decides the direction of a step, the scheduler decides its time. Between two steps the server passes
    each arriving update to `receive`, in order. `pseudo_gradient` then returns v and discards the updates it used.
    """

    eta: Positive = 1.0
    """Server learning rate η."""
    eta_schedule: Schedule = field(default_factory=ConstantRate)
    """Schedule of η over the effective steps: those that have moved x."""
    optimizer: ServerOptimizer = field(default_factory=Plain)
    """Server optimizer, which applies v to the model. `plain` is x ← x + η·v."""

    schedulers: ClassVar[tuple[str, ...]]
    """Names of the schedulers that the algorithm supports. The first one is its default."""
    single_step: ClassVar[bool] = False
    """Whether the algorithm is defined for a single local step only."""
    base_state_names: ClassVar[tuple[str, ...]] = ("x", "version", "effective_steps", "received", "optimizer")

    client_rule: ClassVar[str | None] = None
    """Name of the client rule that the algorithm requires, or None for any."""

    def __post_init__(self) -> None:
        self.eta_schedule = as_schedule(self.eta_schedule)
        super().__post_init__()

    def start(
        self,
        x: Tensor,
        clients: int,
        seed: int = 0,
        participation: Callable[[int], float | None] = lambda _: None,
        updates: int | None = None,
        local_schedule: Schedule | None = None,
    ) -> None:
        """Start a new run and discard the state of any earlier one.

        Args:
            x: The initial model.
            clients: The number of clients N.
            seed: The seed of the run.
            participation: Returns a client's probability of being available, or None if it is unknown.
            updates: The number of updates per step, or None if it varies.
            local_schedule: The schedule of the local rate; constant when left out.
        """
        self.participation = participation
        self.updates = updates
        self.local_schedule = local_schedule or ConstantRate()
        self.x = x
        self.version = 0
        self.effective_steps = 0
        self.clients = clients
        self.seed = seed
        self.received = 0
        self.optimizer.start(x)
        self.reset()

    @abstractmethod
    def reset(self) -> None:
        """Initialize the state of the algorithm. `x`, `clients`, `seed` and `updates` are already set."""

    @abstractmethod
    def accumulate(self, job: Job, update: Update) -> None:
        """Accumulate one update.

        Args:
            job: The job of the update; `job.x` is the model that the client pulled.
            update: The update.
        """

    @abstractmethod
    def pseudo_gradient(self) -> Tensor | None:
        """Return v from the updates accumulated since the last step (at least one).

        Returns:
            The pseudo-gradient, or None if the algorithm needs more updates before it moves x.
        """

    def validate(self, experiment: Settings) -> None:
        """Check that an experiment suits the algorithm. Overriding methods add checks and call `super().validate`.

        Args:
            experiment: The experiment before any data is loaded.

        Raises:
            ConfigError: A setting does not suit the algorithm.
        """
        rule = type(self).__name__
        if self.single_step and experiment.client.steps != 1:
            raise ConfigError(f"{rule} is defined for one local step: set steps = 1", key="client.steps")
        if (self.single_step or self.plans) and not experiment.environment.local_work.exact:
            raise ConfigError(
                f"{rule} determines the number of local steps: remove local_work", key="environment.local_work"
            )
        if self.client_rule is not None and experiment.client.name != self.client_rule:
            raise ConfigError(
                f"{rule} requires the client rule {self.client_rule!r}: set name = {self.client_rule!r}",
                key="client.name",
            )

    def validate_participation(self, clients: int, participation: Callable[[int], float | None]) -> None:
        """Check the clients' participation probabilities once the data is loaded.

        Args:
            clients: The number of clients.
            participation: Returns a client's probability of being available, or None if it is unknown.

        Raises:
            ConfigError: The algorithm requires probabilities that are unknown.
        """

    def workload(self, device: Device) -> Workload | None:
        """Plan the local work of a client.

        Args:
            device: The client and its known speed.

        Returns:
            The workload, or None to leave steps and compression to the client rule and the codec.
        """
        return None

    def describe_plan(self, devices: Sequence[Device]) -> dict[str, Any]:
        """Return the planned work in the form that reports draw.

        Args:
            devices: All devices.

        Returns:
            A JSON-serializable dictionary, empty if the algorithm plans nothing.
        """
        return {}

    @property
    def plans(self) -> bool:
        """Whether the algorithm plans the work of its clients."""
        return type(self).workload is not Algorithm.workload

    def use_folder(self, folder: pathlib.Path) -> None:
        """Store files, such as an update cache on disk, in a folder of the run."""
        if (cache := self.update_cache) is not None:
            cache.use_folder(folder)

    def use_layout(self, layout: Layout) -> None:
        """Learn the tensors of which x consists, before `start`. A quantized cache may have a range for each."""
        cache: UpdateCache | None = self.component(UpdateCache)
        if cache is not None:
            cache.use_layout(layout)

    @property
    def update_cache(self) -> UpdateCache | None:
        """The update cache, if the algorithm has one."""
        cache: UpdateCache | None = self.component(UpdateCache)
        return cache

    @property
    def cache_bytes(self) -> int:
        """The size of the update cache in bytes, or 0 without one."""
        return cache.nbytes if (cache := self.update_cache) is not None else 0

    def component(self, kind: type) -> Any:
        """Return the component of the given type, such as the update cache or the aggregator, or None."""
        # Not only the options: MF-CA²FL creates its cache itself.
        return next((value for value in vars(self).values() if isinstance(value, kind)), None)

    def network(self) -> Network | None:
        """Return how the clients communicate with each other, or None if they only talk to the server."""
        return None

    def rate(self) -> float:
        """Return the server learning rate of this step."""
        return self.eta * self.eta_schedule.factor(self.effective_steps)

    def local_rate(self) -> float:
        """Return the factor on the local learning rate of a job sent now."""
        return self.local_schedule.factor(self.effective_steps)

    def receive(self, job: Job, update: Update) -> None:
        """Accumulate an update and count it."""
        self.accumulate(job, update)
        self.received += 1

    def tau(self, job: Job) -> int:
        """Return the staleness τ: the number of versions since the client pulled its model."""
        return self.version - job.version

    def step(self) -> None:
        """Make the next version.

        x becomes a new tensor, because jobs in flight still refer to the old one. Without any updates x is unchanged.
        """
        if self.received:
            v = self.pseudo_gradient()
            if v is not None:
                self.x = self.optimizer.step(self.x, v, self.rate())
                self.effective_steps += 1
            self.received = 0
        self.version += 1
