"""Client rules of a user: loops of their own, and pure steps with state of several shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

import offbeat as ob
from offbeat.client.local_loop import Batches, LocalJob
from offbeat.client.rules import Number, State
from offbeat.server.extensions import ServerExtension


@dataclass(kw_only=True, frozen=True)
class PlainLoop(ob.ClientRule):
    """SGD, written as a loop."""

    def train(self, model: nn.Module, batches: Batches, job: LocalJob) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=job.lr, weight_decay=self.weight_decay)
        for batch in batches:
            optimizer.zero_grad()
            for part in batch.parts():
                (part.loss(part.outputs(model)).sum() / len(batch)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


@dataclass(kw_only=True, frozen=True)
class Distill(ob.ClientRule):
    """Stays close to the pulled model's outputs; counts jobs and steps, and stores a model of its own."""

    weight: float = 0.5

    client_state: ClassVar[tuple[str, ...]] = ("jobs", "totals", "own")
    sends: ClassVar[tuple[str, ...]] = ("drift",)

    def initial_state(self, x: Tensor) -> State:
        return {"jobs": torch.tensor(0), "totals": torch.ones(2, 3, dtype=torch.float64), "own": x}

    def train(self, model: nn.Module, batches: Batches, job: LocalJob) -> Mapping[str, Tensor]:
        optimizer = torch.optim.Adam(model.parameters(), lr=job.lr)
        for batch in batches:
            with torch.no_grad():
                soft = job.pulled_model(batch.inputs).softmax(dim=1)
            outputs = model(batch.inputs)
            loss = batch.loss(outputs).mean() + self.weight * functional.cross_entropy(outputs, soft)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        y = nn.utils.parameters_to_vector([p for p in model.parameters() if p.requires_grad])
        job.state["totals"] += len(batches)  # in place: these are copies
        own = 0.5 * job.state["own"] + 0.5 * y
        return {
            "jobs": job.state["jobs"] + 1, "totals": job.state["totals"], "own": own, "drift": own - job.x,
        }  # fmt: skip

    def server(self) -> Drift:
        return Drift()


class Drift(ServerExtension):
    """Sums what clients send."""

    state_names: ClassVar[tuple[str, ...]] = ("total",)

    def start(self, x: Tensor, clients: int) -> None:
        self.total = torch.zeros_like(x)

    def extra(self) -> Mapping[str, Tensor]:
        return {}

    def receive(self, update: ob.Update) -> None:
        self.total = self.total + update.extra["drift"]


@dataclass(kw_only=True, frozen=True)
class Remembering(ob.SGD):
    """Momentum that survives a job, in pure steps, next to a counter of steps and a matrix."""

    client_state: ClassVar[tuple[str, ...]] = ("memory", "taken", "matrix")

    def initial_state(self, x: Tensor) -> State:
        return {"memory": 0.01 * x, "taken": torch.zeros(1, dtype=torch.int64), "matrix": torch.eye(2, 3)}

    def begin(self, x: Tensor, extra: Mapping[str, Tensor], client_state: State) -> State:
        return dict(client_state)

    def update(self, y: Tensor, g: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        memory = 0.9 * state["memory"] + g
        new = {"memory": memory, "taken": state["taken"] + 1, "matrix": 0.5 * state["matrix"] + 1}
        return y - lr * memory, state | new

    def finish(self, y: Tensor, x: Tensor, lr: Number, steps: Number, state: State) -> tuple[State, State]:
        return {}, {name: state[name] for name in self.client_state}


@dataclass(kw_only=True, frozen=True)
class Returns(PlainLoop):
    """Trains, and returns whatever it is told."""

    what: Any = None

    client_state: ClassVar[tuple[str, ...]] = ("kept",)

    def train(self, model: nn.Module, batches: Batches, job: LocalJob) -> Any:
        super().train(model, batches, job)
        return self.what


@dataclass(kw_only=True, frozen=True)
class RaisesLater(PlainLoop):
    """Fails in the sixth version."""

    def train(self, model: nn.Module, batches: Batches, job: LocalJob) -> None:
        if job.version > 4:
            raise ZeroDivisionError("broken loop")
        super().train(model, batches, job)
