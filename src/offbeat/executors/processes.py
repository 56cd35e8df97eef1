"""The `processes` executor: one worker process per core, each with one thread.

It suits models that gain nothing from stacking, such as convolutions on a CPU. Two threads share the operations of a
small model badly, and wait for each other when the machine has other work. Two processes share nothing, and train two
clients in the time of one. The results equal those of one process bit for bit, whatever the number of workers.

A worker inherits the model, the data and the client rules when it is forked (`workers`). It receives x and the
auxiliary vectors through shared memory (`shared`). A client rule that the workers do not know restarts them.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

import torch

from offbeat.client.context import TrainingContext
from offbeat.client.rules import ClientRule
from offbeat.client.runtime import ClientRuntime
from offbeat.client.training import Plan, Trained, WorkItem, train_job
from offbeat.errors import ConfigError
from offbeat.executors.base import Task
from offbeat.executors.cpu_threads import cores
from offbeat.executors.pooled import Backend, PendingTask, Pooled, WorkerLost
from offbeat.executors.shared import SharedSlab, SlabAllocator, TensorRef
from offbeat.executors.workers import ForkedWorker, Handler
from offbeat.messages import Job, parts

JOBS_PER_WORKER = 4  # trained in one call: enough to balance the load, few enough to end soon after Ctrl-C


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """A task as it is sent to a worker process.

    Attributes:
        rule: Index of its client rule among those that the worker knows.
        job: Fields of the job without its tensors.
        x: The model to start from.
        extra: The auxiliary vectors that came with the job.
        client_state: The client's state.
        slots: Slots for the tensors of the reply.
        plan: Batches of the job.
    """

    rule: int
    job: dict[str, Any]
    x: TensorRef
    extra: dict[str, TensorRef]
    client_state: dict[str, TensorRef]
    slots: list[int | None]
    plan: Plan


@dataclass(frozen=True, slots=True)
class TrainReply:
    """A trained task as it returns from a worker process: the fields of `Trained`."""

    finite: bool
    delta: TensorRef
    extra: dict[str, TensorRef]
    client_state: dict[str, TensorRef]
    loss: float


@dataclass(frozen=True, slots=True)
class _Memory:
    """Shared memory that a pending task holds."""

    shared: list[TensorRef]  # with other tasks
    slots: list[int | None]  # its own


class ForkBackend(Backend[ForkedWorker, TrainReply]):
    """Forked workers with shared memory.

    Args:
        context: Model, data and device of the workers.
        size: Number of workers.
    """

    name = "worker processes"
    attempts = 2

    def __init__(self, context: TrainingContext, size: int) -> None:
        self.context, self.size = context, size
        self.workers: list[ForkedWorker] = []
        self.rules: list[ClientRule] = []
        self.allocator: SlabAllocator | None = None
        self._memory: dict[PendingTask, _Memory] = {}
        self._owner = os.getpid()
        weakref.finalize(self, _kill_all, self.workers)

    def close(self) -> None:
        """End the workers and release the shared memory."""
        _kill_all(self.workers)
        self._memory.clear()
        self.allocator = None

    def prepare(self, tasks: Sequence[Task]) -> None:
        """Provide shared memory that suits the tasks; end workers that do not know all rules."""
        for runtime, _ in tasks:
            if runtime.context.rule not in self.rules:
                self.close()
                self.rules.append(runtime.context.rule)
        if self._owner != os.getpid():  # this is a fork of the process to which workers and memory belong
            self.close()
            self._owner = os.getpid()
        if self.allocator is None:
            rules = [(runtime.context.rule, job) for runtime, job in tasks]
            tensors = max(2 + len(job.extra) + len(rule.sends) + 2 * len(rule.client_state) for rule, job in rules)
            # Twice, because a worker gets its next task before the reply to the last one is decoded.
            model_bytes = max(job.x.element_size() for _, job in tasks) * self.context.layout.dim
            slab = SharedSlab(2 * self.size * tensors, model_bytes)
            self.allocator = SlabAllocator(slab)
        for worker in [worker for worker in self.workers if not worker.alive()]:
            self._discard(worker)

    def idle_worker(self, pending: PendingTask, outstanding: int) -> ForkedWorker | None:
        """Return an idle worker; fork one while there are fewer than `size`."""
        worker = next((worker for worker in self.workers if worker.idle), None)
        if worker is None and len(self.workers) < self.size:
            worker = ForkedWorker(self._handler())
            self.workers.append(worker)
        return worker

    def _handler(self) -> Handler:
        assert self.allocator is not None
        context, rules, slab = self.context, self.rules, self.allocator.slab
        context.module.train()
        return lambda request: _handle(context, rules, slab, request)

    def submit(self, worker: ForkedWorker, pending: PendingTask) -> WorkerLost | None:
        """Copy the tensors of a task into shared memory and send the rest through the worker's pipe."""
        return None if worker.send(self._request(pending)) else self._discard(worker)

    def _request(self, pending: PendingTask) -> TrainRequest:
        assert self.allocator is not None
        allocator, ((runtime, job),) = self.allocator, pending.tasks
        item = runtime.item(job)
        job = item.job
        x, extra = allocator.share(job.x), {name: allocator.share(value) for name, value in job.extra.items()}
        replied = 1 + len(item.rule.sends) + len(item.rule.client_state)
        slots = [allocator.allocate() for _ in range(len(item.client_state) + replied)]
        self._memory[pending] = _Memory([x, *extra.values()], slots)
        put = allocator.slab.put
        return TrainRequest(
            rule=self.rules.index(item.rule),
            job={name: value for name, value in parts(job).items() if name not in ("x", "extra")},
            x=x,
            extra=extra,
            client_state={n: put(v, slot) for (n, v), slot in zip(item.client_state.items(), slots, strict=False)},
            slots=slots[len(item.client_state) :],
            plan=runtime.context.plan(job),
        )

    def replies(self) -> Iterator[tuple[ForkedWorker, TrainReply | WorkerLost]]:
        """Wait for the first reply and return those that are there by then."""
        busy = [worker for worker in self.workers if not worker.idle]
        ready = wait([worker.channel for worker in busy])
        for worker in [worker for worker in busy if worker.channel in ready]:
            try:
                reply: TrainReply | WorkerLost = worker.receive()
            except EOFError:
                reply = self._discard(worker)
            yield worker, reply

    def results(self, pending: PendingTask, reply: TrainReply) -> list[Trained]:
        """Copy the tensors of a reply out of the shared memory."""
        assert self.allocator is not None
        copy = self.allocator.slab.copy
        extra, client_state = (
            {name: copy(ref) for name, ref in refs.items()} for refs in (reply.extra, reply.client_state)
        )
        trained = Trained(reply.finite, copy(reply.delta), extra, client_state, reply.loss)
        self.release(pending)
        return [trained]

    def release(self, pending: PendingTask) -> None:
        """Free the shared memory of a task."""
        assert self.allocator is not None
        memory = self._memory.pop(pending)
        for ref in memory.shared:
            self.allocator.unshare(ref)
        for slot in memory.slots:
            self.allocator.free(slot)

    def finish(self, tasks: Sequence[Task]) -> None:
        """Free the memory of models that no task reads."""
        assert self.allocator is not None
        self.allocator.evict_unread()

    def _discard(self, worker: ForkedWorker) -> WorkerLost:
        worker.kill()
        self.workers.remove(worker)
        return WorkerLost(
            f"the process ended with status {worker.exitcode}. Status -9 usually means a lack of memory: use fewer "
            "cores (taskset) or executor = 'sequential'."
        )


class Processes(Pooled):
    """Trains each job in a worker process with the function that `sequential` uses.

    Args:
        runtime: The client runtime of the run.
    """

    backend: ForkBackend

    def __init__(self, runtime: ClientRuntime) -> None:
        context = runtime.context
        if context.device.type != "cpu":
            raise ConfigError("'processes' spreads jobs over the cores of a CPU; on a GPU use 'auto'.", key="executor")
        if not hasattr(os, "sched_getaffinity"):
            raise ConfigError("'processes' needs Linux; use 'sequential'.", key="executor")
        super().__init__(runtime, ForkBackend(context, cores()))
        self.bulk = self.sample = min(self.bulk, JOBS_PER_WORKER * self.backend.size)

    def local_results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Trained]]:
        """Distribute the tasks over the workers; meanwhile this process uses one thread, since the cores are taken."""
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield from super().local_results(tasks)
        finally:
            torch.set_num_threads(before)


def _handle(
    context: TrainingContext, rules: Sequence[ClientRule], slab: SharedSlab, request: TrainRequest
) -> TrainReply:
    """Train a request; runs in the worker."""
    job = Job(**request.job, x=slab.view(request.x), extra={n: slab.view(ref) for n, ref in request.extra.items()})
    state = {name: slab.view(ref) for name, ref in request.client_state.items()}
    trained = train_job(context, WorkItem(rules[request.rule], job, state), request.plan)
    slots = iter(request.slots)
    return TrainReply(
        trained.finite,
        slab.put(trained.delta, next(slots, None)),
        {name: slab.put(value, next(slots, None)) for name, value in trained.extra.items()},
        {name: slab.put(value, next(slots, None)) for name, value in trained.client_state.items()},
        trained.loss,
    )


def _kill_all(workers: list[ForkedWorker]) -> None:
    for worker in workers:
        worker.kill()
    workers.clear()
