"""The models of a run at one moment: x alone, and those with which its clients are tested."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor, nn

from offbeat.client.evaluation import EvaluationInterrupted
from offbeat.client.personal_part import PERSONAL
from offbeat.client.tested import tested_models
from offbeat.client.training import Trained
from offbeat.executors.base import Task
from offbeat.messages import Job
from offbeat.random import key
from offbeat.runs.assembly import Assembly
from offbeat.server.session import ServerSession
from offbeat.vectors import Layout, copied


class Models:
    """The newest models of a run.

    Attributes:
        per_client: Whether every client is tested with a model of its own.

    Args:
        assembly: The experiment.
        session: The server's session.
        simulated: Whether the clients' state is here; real clients keep it to themselves.
    """

    def __init__(self, assembly: Assembly, session: ServerSession, *, simulated: bool) -> None:
        self.assembly, self.session, self.simulated = assembly, session, simulated
        self.per_client = simulated and assembly.context.personalization.tests_clients

    def of(
        self, clients: Sequence[int], *, fine_tune: bool = True, stopping: Callable[[], bool] = lambda: False
    ) -> tuple[Tensor, Tensor | None]:
        """Return the models (n, d) of clients, in the dimension of local training, and their running statistics (n, b).

        Args:
            clients: The clients.
            fine_tune: Whether they are fine-tuned, if that is asked for.
            stopping: Asks whether to stop between two clients.

        Raises:
            EvaluationInterrupted: It was asked to stop.
        """
        loop, version, seed = self.session.loop, self.session.version, self.assembly.experiment.seed
        steps = self.assembly.context.personalization.fine_tune_steps if fine_tune else 0
        rate = loop.algorithm.local_rate()
        extra = loop.extension.extra() if loop.extension is not None else {}
        jobs = [
            Job(
                0, client, version, self.session.x, steps, key(seed, "fine-tune", client, version), rate, extra=extra,
                last_accepted_job=loop.last_accepted.get(client, 0) if loop.tracks_acceptance else None,
            )
            for client in clients
        ]  # fmt: skip

        def train(tasks: Sequence[Task]) -> Iterator[tuple[int, Trained]]:
            for result in self.assembly.executor.local_results(tasks):
                if stopping():
                    raise EvaluationInterrupted
                yield result

        return tested_models(self.assembly.runtime, jobs, train)

    def module(self, client: int | None = None) -> nn.Module:
        """Return a copy of the module with the newest weights and statistics.

        Args:
            client: The client whose model it is; without one, what stays on the clients has its initial values.
        """
        context = self.assembly.context
        if client is None:
            return self.snapshot()()
        models, statistics = self.of([client])
        return _module(
            context.module,
            (context.layout, models[0]),
            (context.buffers, None if statistics is None else statistics[0]),
        )

    def snapshot(self) -> Callable[[], nn.Module]:
        """Return a function that builds the module with the weights of now; it does not keep the run alive."""
        context, session = self.assembly.context, self.session
        weights = context.split.shared, session.x
        return functools.partial(_module, context.module, weights, (context.split.shared_buffers, session.buffers))

    def personal(self) -> dict[str, Tensor]:
        """Return what stays on each client that has trained, as "client.name"."""
        part, context = self.assembly.runtime.personal, self.assembly.context
        if part is None or not self.simulated:
            return {}
        names = context.split.own.names + context.split.own_buffers.names
        found: dict[str, Tensor] = {}
        for client in sorted(part.state.rows[PERSONAL]):
            models, statistics = self.of([client], fine_tune=False)
            named = context.layout.unflatten(models[0])
            named |= {} if statistics is None else context.buffers.unflatten(statistics[0])
            found |= {f"{client}.{name}": named[name] for name in names}
        return found


def _module(module: nn.Module, *parts: tuple[Layout, Tensor | None]) -> nn.Module:
    """Return a copy of a module with new values of some of its tensors."""
    made = copied(module)
    for layout, values in parts:
        if values is not None:
            layout.write(made, values)
    return made.eval()
