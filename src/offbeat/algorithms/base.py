"""What every server rule is: a direction v, and a step of the server's optimiser along it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from offbeat.algorithms.network import Network
from offbeat.algorithms.optimisers import Plain, ServerOptimiser
from offbeat.messages import Job, Update
from offbeat.options import Options, Positive


@dataclass(kw_only=True)
class Algorithm(Options, ABC):
    """A server rule: small and stateful, like an optimiser of torch.optim.

    The rule says *where to*; *when* the server steps is the dispatch's business.  Between two steps the server hands
    over what arrives, in order, through `receive`; `direction` then gives v and forgets what it has used.
    """

    eta: Positive = 1.0
    """Server rate η."""
    optimiser: ServerOptimiser = field(default_factory=Plain)
    """What the server does with v; by itself x ← x + η·v."""

    dispatches: ClassVar[tuple[str, ...]]
    """Names of the dispatches under which the rule makes sense; the first is its own."""
    single_step: ClassVar[bool] = False
    """Whether the rule is defined for a single local step only."""
    state_names: ClassVar[tuple[str, ...]] = ()
    """Attributes that make up the rule's state between two arrivals, beside x and the version."""

    client_rule: ClassVar[str | None] = None
    """The client rule that the algorithm's other half is, where there is one."""
    plans: ClassVar[bool] = False
    """Whether the rule chooses each client's steps and compression."""

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
        self.optimiser.start(x)
        self.reset()

    @abstractmethod
    def reset(self) -> None:
        """Set up the rule's own state; x, clients, seed and updates are there."""

    @abstractmethod
    def absorb(self, job: Job, update: Update) -> None:
        """Take in one update.  `job` is what it answers: job.x is the model that the client had pulled."""

    @abstractmethod
    def direction(self) -> Tensor | None:
        """v, from what was absorbed since the last step (at least one update); None where the rule still waits."""

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
        self.absorb(job, update)
        self.received += 1

    def tau(self, job: Job) -> int:
        """τ: versions between the one that the client pulled and the one its update meets."""
        return self.version - job.version

    def step(self) -> None:
        """The next version.  x becomes a new tensor, so jobs in flight keep theirs; with nothing received x stays."""
        if self.received:
            v = self.direction()
            if v is not None:
                self.x = self.optimiser.step(self.x, v, self.rate())
            self.received = 0
        self.version += 1

    def state_dict(self) -> dict[str, Any]:
        """The state by reference, as in torch.optim: save it or copy it before the next arrival."""
        state: dict[str, Any] = {"x": self.x, "version": self.version, "received": self.received}
        for name in ("optimiser", *self.state_names):
            value = getattr(self, name)
            state[name] = value.state_dict() if hasattr(value, "state_dict") else value
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state, which then belongs to the rule; `start` must have been called."""
        self.x, self.version, self.received = state["x"], state["version"], state["received"]
        for name in ("optimiser", *self.state_names):
            value = getattr(self, name)
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(state[name])
            else:
                setattr(self, name, state[name])
