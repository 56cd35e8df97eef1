"""The one server loop, the same in virtual and in real time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from offbeat.algorithms import Algorithm
from offbeat.algorithms.workload import Workload
from offbeat.environment import Environment
from offbeat.messages import Job, Update
from offbeat.random import fold_in_pair, key
from offbeat.scheduling import Scheduler
from offbeat.server.events import Arrival, Outcome, Tick, Transport
from offbeat.server.extensions import ServerExtension
from offbeat.server.pool import Pool
from offbeat.server.validation import UpdateValidator

Sent = tuple[int, Tensor, Mapping[str, Tensor]]
"""What a job starts from: a version, its x as clients decode it, and the auxiliary vectors of that time."""


class Loop:
    """Receives an event, passes it to the algorithm, asks the scheduler whether to step, and sends new jobs.

    Between two turns the complete state is in `state_dict`.

    Args:
        algorithm: The server's rule.
        scheduler: Decides when to step and how many clients are busy.
        environment: Availability and local work of clients.
        transport: Delivers jobs and updates.
        clients: Number of clients.
        workload: Returns the work to request from a client.
        seed: Seed of the run.
        extension: Server-side state of the client rule, if it has any.
        validator: Validates updates.
        auxiliary_sizes: Sizes of the vectors that an update carries in addition to Δ.
        outgoing: Returns a version of x as clients decode it.
        tracks_acceptance: Whether clients keep state, so that they need to know which updates were accepted.
        tests_clients: Whether evaluations need to know it as well, as they test what clients keep.
    """

    def __init__(
        self,
        *,
        algorithm: Algorithm,
        scheduler: Scheduler,
        environment: Environment,
        transport: Transport,
        clients: int,
        workload: Callable[[int], Workload],
        seed: int,
        extension: ServerExtension | None = None,
        validator: UpdateValidator | None = None,
        auxiliary_sizes: Mapping[str, int] | None = None,
        outgoing: Callable[[Tensor, int], Tensor] = lambda x, version: x,
        tracks_acceptance: bool = False,
        tests_clients: bool = False,
    ) -> None:
        self.algorithm, self.scheduler, self.environment, self.transport = algorithm, scheduler, environment, transport
        self.workload, self.extension, self.outgoing = workload, extension, outgoing
        self.validator, self.auxiliary_sizes = validator or UpdateValidator(), auxiliary_sizes or {}
        can_reject = transport.untrusted or self.validator.can_reject
        self.tracks_acceptance = tracks_acceptance and (can_reject or tests_clients)
        self.last_accepted: dict[int, int] = {}  # each client's last accepted job
        self.seed = seed
        self._job_key = key(seed, "job")
        self.pool = Pool(clients, seed)
        self.jobs = 0  # number of jobs sent so far
        self.out: set[int] = set()  # ids of pending jobs
        self.asleep_until = 0.0  # until then, only a client that becomes idle needs to be checked
        self.models: deque[Sent] = deque(maxlen=scheduler.last_models)

    def start(self) -> None:
        """Send the first jobs."""
        self.scheduler.start(len(self.pool))
        self._remember()
        for client in range(len(self.pool)) if self.scheduler.anarchic else ():
            self._idle(client)
        self._send(None)

    def turn(self) -> Outcome:
        """Handle one event."""
        algorithm, scheduler, transport = self.algorithm, self.scheduler, self.transport
        event, now = transport.receive(), transport.now
        freed, joins, refused = None, None, None
        staleness, arrived, aggregated = 0, False, False
        if isinstance(event, Tick):
            joins = event.client
        else:
            job, freed = event.job, event.job.client
            if job.id not in self.out:
                return Outcome(now, event, 0, False, False, "unsolicited")
            self.out.remove(job.id)
            self.pool.release(freed)
            if isinstance(event, Arrival):
                staleness = algorithm.tau(job)
                update = self.validator.examine(
                    job, event.update, staleness, algorithm.x, self.auxiliary_sizes, transport.untrusted
                )
                if isinstance(update, str):
                    refused = update
                else:
                    arrived, aggregated = True, self._accept(job, update)
            elif event.unreadable:
                refused = "unreadable"
            scheduler.freed(job, arrived)
            if scheduler.anarchic:
                self._idle(freed)
        # At the very end of a period the server waits for its tick, which follows all arrivals of that time.
        stepped = scheduler.due(now) and (isinstance(event, Tick) or now != scheduler.wake_at)
        if stepped:
            algorithm.step()
            if self.extension is not None:
                self.extension.stepped()
            scheduler.stepped()
            self._remember()
        if joins is not None:
            self._join(joins)
        self._send(freed)
        return Outcome(now, event, staleness, aggregated, stepped, refused)

    def _accept(self, job: Job, update: Update) -> bool:
        """Process an accepted update; return whether it was in time for the algorithm."""
        aggregated = self.scheduler.accepts(job)
        if aggregated:
            self.algorithm.receive(job, update)
        if self.extension is not None:  # the client's state has changed, even if its update is late
            self.extension.receive(update)
        if self.tracks_acceptance:
            self.last_accepted[job.client] = job.id
        return aggregated

    def _remember(self) -> None:
        """Store the new version for jobs that will start from it."""
        version = self.algorithm.version
        self.models.append((version, self.outgoing(self.algorithm.x, version), self._extra()))

    def _extra(self) -> Mapping[str, Tensor]:
        """Return the auxiliary vectors of now."""
        return self.extension.extra() if self.extension is not None else {}

    def _send(self, freed: int | None) -> None:
        """Send jobs to idle, available clients as far as the scheduler has free slots; wake up later for the rest."""
        scheduler, transport = self.scheduler, self.transport
        if scheduler.open:
            if transport.now >= self.asleep_until:
                self._send_to(self._draw(scheduler.open))
                if scheduler.open:
                    self.asleep_until = self.environment.availability.next_change(transport.now)
                    transport.wake(self.asleep_until)
            elif freed is not None and self._awake(freed):
                self.pool.take(freed)
                self._send_to([freed])
        if scheduler.wake_at < math.inf:
            transport.wake(scheduler.wake_at)

    def _draw(self, count: int) -> list[int]:
        network = self.algorithm.network()
        if network is None or network.clusters == 1:
            everybody = self.scheduler.draws_sleepers or self.environment.availability.constant
            return self.pool.draw(count, None if everybody else self._awake, self.scheduler.weights)
        clusters, n = network.clusters, len(self.pool)  # the same number from each cluster
        members = (lambda c, k=k: network.cluster(c, n) == k and self._awake(c) for k in range(clusters))
        weights = self.scheduler.weights
        return [client for member in members for client in self.pool.draw(count // clusters, member, weights)]

    def _awake(self, client: int) -> bool:
        return self.scheduler.draws_sleepers or self.environment.awake(self.seed, client, self.transport.now)

    def _send_to(self, clients: Sequence[int]) -> None:
        first = self.jobs + 1
        jobs = self._jobs(clients)
        self.out.update(range(first, self.jobs + 1))
        self.transport.send(jobs)
        self.scheduler.sent(len(clients), first, self.transport.now)

    def _idle(self, client: int) -> None:
        """Let an anarchic client join again after its gap."""
        gap = self.scheduler.gap(client, key(self.seed, "gap", client, self.pool.trips[client]))
        self.transport.wake(self.transport.now + gap, client)

    def _join(self, client: int) -> None:
        """Send a job to an anarchic client, or try again when it may be available."""
        if self._awake(client):
            self.pool.take(client)
            self._send_to([client])
        else:
            self.transport.wake(self.environment.wakes(self.seed, client, self.transport.now), client)

    def _jobs(self, clients: Sequence[int]) -> list[Job]:
        environment, now, workload, scheduler = self.environment, self.transport.now, self.workload, self.scheduler
        trips, job_key = self.pool.trips, self._job_key
        models, newest = self.models, len(self.models) - 1
        version, x, _ = models[newest]
        exact = environment.local_work.exact
        rate = self.algorithm.local_rate()
        now_extra = extra = self._extra()
        jobs = []
        for number, client in enumerate(clients, start=self.jobs + 1):
            seed = fold_in_pair(job_key, client, trips[client])  # key(seed, "job", client, trip)
            if newest:
                lag = scheduler.lag(seed, newest + 1)
                version, x, extra = models[newest - lag]
                extra = extra if lag else now_extra
            work = workload(client)
            steps = work.steps if exact else environment.steps(self.seed, work.steps, client, seed, now)
            accepted = self.last_accepted.get(client, 0) if self.tracks_acceptance else None
            talk, compression = steps * work.peer_seconds, work.compression_rate
            jobs.append(Job(number, client, version, x, steps, seed, rate, talk, compression, extra, accepted))
        self.jobs += len(jobs)
        return jobs

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the transport's state."""
        return {
            "algorithm": self.algorithm.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "pool": self.pool.state_dict(),
            "extension": self.extension.state_dict() if self.extension is not None else None,
            "jobs": self.jobs,
            "out": sorted(self.out),
            "asleep_until": self.asleep_until,
            "models": list(self.models),
            "last_accepted": self.last_accepted,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state instead of calling `start`."""
        self.scheduler.start(len(self.pool))
        self.algorithm.load_state_dict(state["algorithm"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.pool.load_state_dict(state["pool"])
        if self.extension is not None:
            self.extension.load_state_dict(state["extension"])
        self.jobs, self.asleep_until = state["jobs"], state["asleep_until"]
        self.out, self.last_accepted = set(state["out"]), state["last_accepted"]
        self.models.extend(state["models"])
