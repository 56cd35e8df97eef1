"""The one server loop, the same in virtual and in real time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from offbeat.algorithms import Algorithm
from offbeat.engine.dispatch import Dispatch
from offbeat.engine.events import Arrival, Lost, Outcome, Transport
from offbeat.engine.pool import Pool
from offbeat.messages import Job
from offbeat.seeds import key
from offbeat.world import World


class Loop:
    """Receive an event → algorithm → dispatch → send.  Between two turns everything is in `state_dict`."""

    def __init__(
        self,
        algorithm: Algorithm,
        dispatch: Dispatch,
        world: World,
        transport: Transport,
        clients: int,
        steps: Callable[[int], int],
        seed: int,
    ) -> None:
        self.algorithm, self.dispatch, self.world, self.transport = algorithm, dispatch, world, transport
        self.steps = steps  # local steps to ask of a client
        self.seed = seed
        self.pool = Pool(clients, seed)
        self.jobs = 0  # ever sent

    def start(self) -> None:
        """Send out the first jobs."""
        self.dispatch.start()
        self._send()

    def turn(self) -> Outcome:
        """Handle one event."""
        event = self.transport.receive()
        staleness, aggregated = 0, False
        if isinstance(event, (Arrival, Lost)):
            job = event.job
            self.pool.release(job.client)
            if isinstance(event, Arrival):
                staleness = self.algorithm.tau(job)
                aggregated = self.dispatch.accepts(job, self.algorithm.version)
                if aggregated:
                    self.algorithm.receive(job, event.update)
            self.dispatch.freed(job, self.algorithm.version, isinstance(event, Arrival))
        stepped = self.dispatch.due(self.transport.now)
        if stepped:
            self.algorithm.step()
            self.dispatch.stepped()
        self._send()
        return Outcome(self.transport.now, event, staleness, aggregated, stepped)

    def _send(self) -> None:
        """Fill the open places with clients that are idle and awake; come back later for those that stay open."""
        now = self.transport.now
        wanted = self.dispatch.open
        if not wanted:
            return
        clients = self.pool.draw(wanted, lambda client: self.world.awake(self.seed, client, now))
        self.transport.send([self._job(client) for client in clients])
        again = self.dispatch.sent(len(clients), now)
        if again is not None:
            self.transport.wake(again)
        if self.dispatch.open:
            self.transport.wake(self.world.availability.next_change(now))

    def _job(self, client: int) -> Job:
        self.jobs += 1
        seed = key(self.seed, "job", client, self.pool.trips[client])
        return Job(self.jobs, client, self.algorithm.version, self.algorithm.x, self.steps(client), seed)

    def state_dict(self) -> dict[str, Any]:
        return {
            "algorithm": self.algorithm.state_dict(),
            "dispatch": self.dispatch.state_dict(),
            "pool": self.pool.state_dict(),
            "jobs": self.jobs,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Instead of `start`; the transport's state is its own."""
        self.dispatch.start()
        self.algorithm.load_state_dict(state["algorithm"])
        self.dispatch.load_state_dict(state["dispatch"])
        self.pool.load_state_dict(state["pool"])
        self.jobs = state["jobs"]
