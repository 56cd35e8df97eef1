"""What every server rule is: a direction v, and x ← x + η·v."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

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

    dispatches: ClassVar[tuple[str, ...]]
    """Names of the dispatches under which the rule makes sense; the first is its own."""
    state_names: ClassVar[tuple[str, ...]] = ()
    """Attributes that make up the rule's state between two arrivals, beside x and the version."""

    def start(self, x: Tensor, clients: int, seed: int = 0) -> None:
        """Begin at x with N clients.  Forgets any earlier run."""
        self.x = x
        self.version = 0
        self.clients = clients
        self.seed = seed
        self.received = 0
        self.reset()

    @abstractmethod
    def reset(self) -> None:
        """Set up the rule's own state; x, clients and seed are there."""

    @abstractmethod
    def absorb(self, job: Job, update: Update) -> None:
        """Take in one update.  `job` is what it answers: job.x is the model that the client had pulled."""

    @abstractmethod
    def direction(self) -> Tensor:
        """v, from what was absorbed since the last step (at least one update)."""

    def receive(self, job: Job, update: Update) -> None:
        self.absorb(job, update)
        self.received += 1

    def tau(self, job: Job) -> int:
        """τ: versions between the one that the client pulled and the one its update meets."""
        return self.version - job.version

    def step(self) -> None:
        """The next version.  x becomes a new tensor, so jobs in flight keep theirs; with nothing received x stays."""
        if self.received:
            self.x = self.x.add(self.direction(), alpha=self.eta)
            self.received = 0
        self.version += 1

    def state_dict(self) -> dict[str, Any]:
        """The state by reference, as in torch.optim: save it or copy it before the next arrival."""
        state: dict[str, Any] = {"x": self.x, "version": self.version, "received": self.received}
        for name in self.state_names:
            value = getattr(self, name)
            state[name] = value.state_dict() if hasattr(value, "state_dict") else value
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state, which then belongs to the rule; `start` must have been called."""
        self.x, self.version, self.received = state["x"], state["version"], state["received"]
        for name in self.state_names:
            value = getattr(self, name)
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(state[name])
            else:
                setattr(self, name, state[name])
