"""Jobs spread over worker processes, one for each core and of one thread each: for models that gain nothing from being
stacked, such as convolutions on a CPU.

Two threads share a small model's operations badly, and wait for each other when the machine has other work; two
processes share nothing, and train two clients in the time of one.  The results are those of one process, bit for bit,
whatever the number of workers.

What belongs to a run stays here: what its clients keep, its codec, its updates.  A worker has the model, the data and
the rules since it was forked (`workers`), gets x and what comes beside it through shared memory (`shared`), and answers
with Δ and what the rule sends and keeps.  A rule that the workers do not know yet makes them start anew.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from multiprocessing.connection import wait
from typing import Any

import torch
from torch import Tensor

from offbeat.client.context import TrainingContext
from offbeat.client.rules import ClientRule, State
from offbeat.client.runtime import ClientRuntime
from offbeat.client.training import Plan, WorkItem, train_job
from offbeat.errors import ConfigError, OffbeatError
from offbeat.executors.base import Executor, Task, TrainingOutcome, examples, outcome
from offbeat.executors.cpu_threads import cores
from offbeat.executors.shared import SharedSlab, SlabAllocator, TensorRef
from offbeat.executors.workers import Serve, Worker
from offbeat.messages import Job

AHEAD = 4  # jobs a worker that are worth training at once: enough to even out, few enough to end soon after Ctrl-C
TRIES = 2


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker is told."""

    rule: int  # its number among those that the worker knows
    job: dict[str, Any]  # without its tensors
    x: TensorRef
    extra: dict[str, TensorRef]
    client_state: dict[str, TensorRef]
    cells: list[int | None]  # for what comes back
    plan: Plan


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of it."""

    finite: bool
    delta: TensorRef
    sent: dict[str, TensorRef]
    client_state: dict[str, TensorRef]


@dataclass(slots=True)
class PendingTask:
    """A task on its way through a worker."""

    place: int  # among all tasks
    task: Task
    tries: int = 0
    lent: list[TensorRef] = field(default_factory=list)
    cells: list[int | None] = field(default_factory=list)
    answer: Answer | None = None


class Processes(Executor):
    """Each job by the very function that `sequential` uses."""

    def __init__(self, runtime: ClientRuntime) -> None:
        super().__init__(runtime)
        context = runtime.context
        if context.device.type != "cpu":
            raise ConfigError("'processes' spreads jobs over the cores of a CPU; on a GPU use 'auto'.", key="executor")
        if not hasattr(os, "sched_getaffinity"):
            raise ConfigError("'processes' needs Linux; use 'sequential'.", key="executor")
        self.most = cores()
        self.bulk = self.sample = min(self.bulk, AHEAD * self.most)
        self._rules: list[ClientRule] = []
        self._workers: list[Worker] = []
        self._busy: dict[Worker, PendingTask] = {}
        self._shelf: SlabAllocator | None = None
        self._owner = os.getpid()
        weakref.finalize(self, _end, self._workers)

    def close(self) -> None:
        """End the workers; the next job starts others."""
        _end(self._workers)
        self._busy.clear()
        self._shelf = None

    def train_all(self, tasks: Sequence[Task]) -> list[TrainingOutcome]:
        if not tasks:
            return []
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # the cores are taken
        try:
            self._prepare(tasks)
            return self._train(tasks)
        except BaseException:  # what the workers are at is nobody's any more
            self.close()
            raise
        finally:
            torch.set_num_threads(before)

    def _prepare(self, tasks: Sequence[Task]) -> None:
        """Provide shared memory and workers that suit the tasks."""
        for runtime, _ in tasks:
            if runtime.context.rule not in self._rules:
                self.close()
                self._rules.append(runtime.context.rule)
        if self._owner != os.getpid():  # forked by the user with workers and memory that are the parent's
            self.close()
            self._owner = os.getpid()
        if self._shelf is None:
            rules = [(runtime.context.rule, job) for runtime, job in tasks]
            tensors = max(2 + len(job.extra) + len(r.sends) + 2 * len(r.keeps) for r, job in rules)
            # Twice: a worker gets its next job before the answer to the last has been read.
            self._shelf = SlabAllocator(SharedSlab(2 * self.most * tensors, max(job.x.nbytes for _, job in tasks)))
        for worker in [worker for worker in self._workers if not worker.alive()]:
            self._discard(worker)

    def _train(self, tasks: Sequence[Task]) -> list[TrainingOutcome]:
        """Longest first, and whoever is free takes the next: then all are done at about the same time."""
        errands = [PendingTask(place, task) for place, task in enumerate(tasks)]
        waiting = deque(sorted(errands, key=lambda errand: -examples([errand.task])))
        outcomes: dict[int, TrainingOutcome] = {}
        while waiting or self._busy:
            self._feed(waiting)
            answered = list(self._collect(waiting))
            self._feed(waiting)  # before the answers are read, which takes its time
            for errand in answered:
                outcomes[errand.place] = self._outcome(errand)
        assert self._shelf is not None
        self._shelf.clear()
        return [outcomes[place] for place in range(len(tasks))]

    def _feed(self, waiting: deque[PendingTask]) -> None:
        """Give every idle worker a job, and start workers while there are cores without one."""
        while waiting and len(self._busy) < self.most:
            worker = next((worker for worker in self._workers if worker not in self._busy), None)
            if worker is None:
                worker = Worker(self._serve())
                self._workers.append(worker)
            errand = waiting.popleft()
            if worker.send(self._order(errand)):
                self._busy[worker] = errand
            else:
                self._again(worker, errand, waiting)

    def _serve(self) -> Serve:
        assert self._shelf is not None
        context, rules, cells = self.context, self._rules, self._shelf.cells
        context.module.train()
        return lambda order: _trained(context, rules, cells, order)

    def _collect(self, waiting: deque[PendingTask]) -> Iterator[PendingTask]:
        """Wait for answers; what a worker had that has died waits again."""
        ready = wait([worker.channel for worker in self._busy])
        for worker in [worker for worker in self._busy if worker.channel in ready]:
            errand = self._busy.pop(worker)
            try:
                errand.answer = worker.receive()
            except EOFError:
                self._again(worker, errand, waiting)
                continue
            yield errand

    def _order(self, errand: PendingTask) -> Order:
        assert self._shelf is not None
        item, shelf, job = errand.task[0].item(errand.task[1]), self._shelf, errand.task[1]
        x, extra = shelf.lend(job.x), {name: shelf.lend(value) for name, value in job.extra.items()}
        cells = [shelf.take() for _ in range(len(item.client_state) + 1 + len(item.rule.sends) + len(item.rule.keeps))]
        errand.lent, errand.cells = [x, *extra.values()], cells
        return Order(
            rule=self._rules.index(item.rule),
            job={f.name: getattr(job, f.name) for f in fields(job) if f.name not in ("x", "extra")},
            x=x,
            extra=extra,
            client_state={
                n: shelf.cells.put(v, cell) for (n, v), cell in zip(item.client_state.items(), cells, strict=False)
            },
            cells=cells[len(item.client_state) :],
            plan=errand.task[0].context.plan(job),
        )

    def _outcome(self, errand: PendingTask) -> TrainingOutcome:
        assert self._shelf is not None
        assert errand.answer is not None
        copy, answer = self._shelf.cells.copy, errand.answer
        sent, kept = ({name: copy(p) for name, p in part.items()} for part in (answer.sent, answer.client_state))
        came = outcome(errand.task, answer.finite, copy(answer.delta), sent, kept)
        self._return(errand)
        return came

    def _return(self, errand: PendingTask) -> None:
        """The errand needs its memory no more."""
        assert self._shelf is not None
        for parcel in errand.lent:
            self._shelf.back(parcel)
        for cell in errand.cells:
            self._shelf.give(cell)

    def _again(self, worker: Worker, errand: PendingTask, waiting: deque[PendingTask]) -> None:
        """A worker has died: try its job once more, with another one."""
        self._discard(worker)
        self._return(errand)
        errand.tries += 1
        if errand.tries >= TRIES:
            _, job = errand.task
            raise OffbeatError(
                f"a worker process has ended with status {worker.exitcode} while it trained client {job.client} from "
                f"version {job.version}, and so had one before it.  -9 is usually a lack of memory: then use fewer "
                "cores (taskset), or executor = 'sequential'."
            )
        waiting.appendleft(errand)

    def _discard(self, worker: Worker) -> None:
        worker.kill()
        self._workers.remove(worker)


def _trained(context: TrainingContext, rules: Sequence[ClientRule], cells: SharedSlab, order: Order) -> Answer:
    """In the worker: from an order to its answer."""
    view = cells.view
    job = Job(**order.job, x=view(order.x), extra={name: view(parcel) for name, parcel in order.extra.items()})
    item = WorkItem(rules[order.rule], job, {name: view(parcel) for name, parcel in order.client_state.items()})
    return _answer(cells, order.cells, *train_job(context, item, order.plan))


def _answer(
    cells: SharedSlab, room: Sequence[int | None], finite: bool, delta: Tensor, sent: State, kept: State
) -> Answer:
    free = iter(room)
    return Answer(
        finite,
        cells.put(delta, next(free, None)),
        {name: cells.put(value, next(free, None)) for name, value in sent.items()},
        {name: cells.put(value, next(free, None)) for name, value in kept.items()},
    )


def _end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.kill()
    workers.clear()
