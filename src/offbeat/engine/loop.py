"""The one server loop, the same in virtual and in real time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from offbeat.algorithms import Algorithm
from offbeat.clients import ServerHalf
from offbeat.engine.dispatch import Anarchic, Dispatch
from offbeat.engine.events import Arrival, Outcome, Tick, Transport
from offbeat.engine.gate import Gate
from offbeat.engine.pool import Pool
from offbeat.messages import Job, Update, record
from offbeat.seeds import further, key
from offbeat.world import Always, AsAsked, World


@record
class Terms:
    """What the server asks of a client."""

    steps: int
    peer_seconds: float = 0.0  # a step, for talking to other clients
    compression_rate: float | None = None


class Loop:
    """Receive an event → algorithm → dispatch → send.  Between two turns everything is in `state_dict`."""

    def __init__(
        self,
        algorithm: Algorithm,
        dispatch: Dispatch,
        world: World,
        transport: Transport,
        clients: int,
        terms: Callable[[int], Terms],
        seed: int,
        half: ServerHalf | None = None,
        gate: Gate | None = None,
        beside: Mapping[str, int] | None = None,
        outgoing: Callable[[Tensor, int], Tensor] = lambda x, version: x,
        keeping: bool = False,
    ) -> None:
        self.algorithm, self.dispatch, self.world, self.transport = algorithm, dispatch, world, transport
        self.terms = terms  # for each client
        self.half = half  # the server's half of what clients send beside Δ
        self.gate, self.beside = gate or Gate(), beside or {}  # sizes of what comes beside Δ
        self.outgoing = outgoing  # x as it goes out
        # Clients that keep something have to know which of their updates were let in, where not all of them are.
        self.keeping = keeping and (transport.doubtful or self.gate.picky)
        self.taken: dict[int, int] = {}  # the last such job of each client
        self.seed = seed
        self._job_key = key(seed, "job")
        self.pool = Pool(clients, seed)
        self.jobs = 0  # ever sent
        self.out: set[int] = set()  # that are waited for
        self.asleep_until = 0.0  # nobody but a client that comes free need be looked at before
        self.models: deque[tuple[int, Tensor]] = deque(maxlen=getattr(dispatch, "last_models", 1))

    def start(self) -> None:
        """Send out the first jobs."""
        self.dispatch.start(len(self.pool))
        self._remember()
        for client in range(len(self.pool)) if self.dispatch.anarchic else ():
            self._idle(client)
        self._send(None)

    def turn(self) -> Outcome:
        """Handle one event."""
        algorithm, dispatch, transport = self.algorithm, self.dispatch, self.transport
        event, now = transport.receive(), transport.now
        freed, joins, refused = None, None, None
        staleness, arrived, aggregated = 0, False, False
        if isinstance(event, Tick):
            joins = event.client
        else:
            job, freed = event.job, event.job.client
            if job.id not in self.out:
                return Outcome(now, event, 0, False, False, "unasked")
            self.out.remove(job.id)
            self.pool.release(freed)
            if isinstance(event, Arrival):
                staleness = algorithm.tau(job)
                update = self.gate.examine(job, event.update, staleness, algorithm.x, self.beside, transport.doubtful)
                if isinstance(update, str):
                    refused = update
                else:
                    arrived, aggregated = True, self._take(job, update)
            elif event.unreadable:
                refused = "unreadable"
            dispatch.freed(job, arrived)
            if dispatch.anarchic:
                self._idle(freed)
        stepped = dispatch.due(now)
        if stepped:
            algorithm.step()
            if self.half is not None:
                self.half.stepped()
            dispatch.stepped()
            self._remember()
        if joins is not None:
            self._join(joins)
        self._send(freed)
        return Outcome(now, event, staleness, aggregated, stepped, refused)

    def _take(self, job: Job, update: Update) -> bool:
        """An update that was let in; True when it is in time for the algorithm."""
        aggregated = self.dispatch.accepts(job)
        if aggregated:
            self.algorithm.receive(job, update)
        if self.half is not None:  # what a client has changed at its end holds also when it is late
            self.half.receive(update)
        if self.keeping:
            self.taken[job.client] = job.id
        return aggregated

    def _remember(self) -> None:
        """Keep the new version for those that will start from it."""
        self.models.append((self.algorithm.version, self.outgoing(self.algorithm.x, self.algorithm.version)))

    def _send(self, freed: int | None) -> None:
        """Fill the open places with clients that are idle and awake; come back later for those that stay open."""
        dispatch, transport = self.dispatch, self.transport
        if dispatch.open:
            if transport.now >= self.asleep_until:
                self._dispatch(self._draw(dispatch.open))
                if dispatch.open:
                    self.asleep_until = self.world.availability.next_change(transport.now)
                    transport.wake(self.asleep_until)
            elif freed is not None and self._awake(freed):
                self.pool.take(freed)
                self._dispatch([freed])
        if dispatch.wake_at < math.inf:
            transport.wake(dispatch.wake_at)

    def _draw(self, count: int) -> list[int]:
        network = self.algorithm.network()
        if network is None or network.clusters == 1:
            everybody = self.dispatch.draws_sleepers or isinstance(self.world.availability, Always)
            return self.pool.draw(count, None if everybody else self._awake, self.dispatch.weights)
        clusters, n = network.clusters, len(self.pool)  # as many of each cluster
        members = (lambda c, k=k: network.cluster(c, n) == k and self._awake(c) for k in range(clusters))
        weights = self.dispatch.weights
        return [client for member in members for client in self.pool.draw(count // clusters, member, weights)]

    def _awake(self, client: int) -> bool:
        return self.dispatch.draws_sleepers or self.world.awake(self.seed, client, self.transport.now)

    def _dispatch(self, clients: Sequence[int]) -> None:
        first = self.jobs + 1
        jobs = self._jobs(clients)
        self.out.update(range(first, self.jobs + 1))
        self.transport.send(jobs)
        self.dispatch.sent(len(clients), first, self.transport.now)

    def _idle(self, client: int) -> None:
        """An anarchic worker will join again after a while."""
        assert isinstance(self.dispatch, Anarchic)
        gap = self.dispatch.gap(client, key(self.seed, "gap", client, self.pool.trips[client]))
        self.transport.wake(self.transport.now + gap, client)

    def _join(self, client: int) -> None:
        """An anarchic worker joins, or looks again when it may be awake."""
        if self._awake(client):
            self.pool.take(client)
            self._dispatch([client])
        else:
            self.transport.wake(self.world.wakes(self.seed, client, self.transport.now), client)

    def _jobs(self, clients: Sequence[int]) -> list[Job]:
        world, now, terms, dispatch = self.world, self.transport.now, self.terms, self.dispatch
        trips, job_key = self.pool.trips, self._job_key
        models, newest = self.models, len(self.models) - 1
        version, x = models[newest]
        as_asked = isinstance(world.effort, AsAsked)
        rate = self.algorithm.local_rate()
        extra = self.half.extra() if self.half is not None else {}
        jobs = []
        for number, client in enumerate(clients, start=self.jobs + 1):
            seed = further(job_key, client, trips[client])  # key(seed, "job", client, trip)
            if newest:
                version, x = models[max(0, newest - dispatch.lag(seed))]
            asked = terms(client)
            steps = asked.steps if as_asked else world.steps(self.seed, asked.steps, client, seed, now)
            peer_seconds = steps * asked.peer_seconds
            compression, taken = asked.compression_rate, self.taken.get(client, 0) if self.keeping else None
            jobs.append(Job(number, client, version, x, steps, seed, rate, peer_seconds, compression, extra, taken))
        self.jobs += len(jobs)
        return jobs

    def state_dict(self) -> dict[str, Any]:
        return {
            "algorithm": self.algorithm.state_dict(),
            "dispatch": self.dispatch.state_dict(),
            "pool": self.pool.state_dict(),
            "half": self.half.state_dict() if self.half is not None else None,
            "jobs": self.jobs,
            "out": sorted(self.out),
            "asleep_until": self.asleep_until,
            "models": list(self.models),
            "taken": self.taken,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Instead of `start`; the transport's state is its own."""
        self.dispatch.start(len(self.pool))
        self.algorithm.load_state_dict(state["algorithm"])
        self.dispatch.load_state_dict(state["dispatch"])
        self.pool.load_state_dict(state["pool"])
        if self.half is not None:
            self.half.load_state_dict(state["half"])
        self.jobs, self.asleep_until = state["jobs"], state["asleep_until"]
        self.out, self.taken = set(state["out"]), state["taken"]
        self.models.extend(state["models"])
