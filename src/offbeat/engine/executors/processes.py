"""Jobs spread over worker processes, one for each core and of one thread each.

Two threads share a small model's operations badly, and wait for each other when the machine has other work; two
processes share nothing, and train two clients, or two stacks of them, in the time of one.  The results are those of one
process, bit for bit where a job is trained alone (`Processes`), whatever the number of workers.

What belongs to a run stays here: what its clients keep, its codec, its updates.  A worker has the model, the data and
the rules since it was forked (`workers`), gets x and what comes beside it through shared memory (`shared`), and answers
with Δ and what the rule sends and keeps.  A rule that the workers do not know yet makes them start anew.
"""

from __future__ import annotations

import os
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from multiprocessing.connection import wait
from typing import Any

import torch
from torch import Tensor

from offbeat.clients import ClientRule, State
from offbeat.engine.executors.base import Executor, Outcome, Piece, Plan, Task, Trained, examples, outcome
from offbeat.engine.executors.sequential import one_by_one
from offbeat.engine.executors.shared import Cells, Parcel, Shelf
from offbeat.engine.executors.vectorised import Vectorised, evenly, plan
from offbeat.engine.executors.workers import Serve, Worker
from offbeat.engine.work import Work
from offbeat.errors import ConfigError, OffbeatError
from offbeat.messages import Job

AHEAD = 4  # jobs a worker that are worth training at once: enough to even out, few enough to end soon after Ctrl-C
TRIES = 2


LocalWork = Callable[[Sequence[Piece], Plan], Iterable[Trained]]


@dataclass(frozen=True, slots=True)
class Parts:
    """A piece of work as it travels."""

    rule: int  # its number among those that the worker knows
    job: dict[str, Any]  # without its tensors
    x: Parcel
    extra: dict[str, Parcel]
    kept: dict[str, Parcel]
    cells: list[int | None]  # for what comes back


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker is told."""

    pieces: list[Parts]
    plan: Plan


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a piece."""

    finite: bool
    delta: Parcel
    sent: dict[str, Parcel]
    kept: dict[str, Parcel]


@dataclass(slots=True)
class Errand:
    """Tasks on their way through a worker."""

    places: Sequence[int]  # among all tasks
    tasks: Sequence[Task]
    tries: int = 0
    lent: list[Parcel] = field(default_factory=list)
    cells: list[int | None] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


class Crew(Executor):
    """The workers, and the way of a task to one of them and back."""

    def __init__(self, work: Work, together: int) -> None:
        super().__init__(work)
        if work.device.type != "cpu":
            raise ConfigError(
                f"{type(self).__name__.lower()!r} spreads jobs over the cores of a CPU; on a GPU use 'auto'.",
                key="executor",
            )
        if not hasattr(os, "sched_getaffinity"):
            raise ConfigError(f"{type(self).__name__.lower()!r} needs Linux; use 'sequential'.", key="executor")
        self.most = max(1, len(os.sched_getaffinity(0)))
        self.together = together  # most tasks of an errand
        self._rules: list[ClientRule] = []
        self._workers: list[Worker] = []
        self._busy: dict[Worker, Errand] = {}
        self._shelf: Shelf | None = None
        self._owner = os.getpid()
        weakref.finalize(self, _end, self._workers)

    @abstractmethod
    def errands(self, tasks: Sequence[Task]) -> list[list[int]]:
        """Places of the tasks that go to a worker together."""

    @abstractmethod
    def local_work(self, pieces: Sequence[Piece], plan: Plan) -> Iterable[Trained]:
        """What a worker does with them."""

    def close(self) -> None:
        """End the workers; the next job starts others."""
        _end(self._workers)
        self._busy.clear()
        self._shelf = None

    def train_all(self, tasks: Sequence[Task]) -> list[Outcome]:
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
        """Memory and workers that suit the tasks."""
        for work, _ in tasks:
            if work.rule not in self._rules:
                self.close()
                self._rules.append(work.rule)
        if self._owner != os.getpid():  # forked by the user with workers and memory that are the parent's
            self.close()
            self._owner = os.getpid()
        if self._shelf is None:
            tensors = max(2 + len(job.extra) + len(w.rule.sends) + 2 * len(w.rule.keeps) for w, job in tasks)
            # Twice: a worker gets its next job before the answer to the last has been read.
            self._shelf = Shelf(Cells(2 * self.most * self.together * tensors, max(job.x.nbytes for _, job in tasks)))
        for worker in [worker for worker in self._workers if not worker.alive()]:
            self._discard(worker)

    def _train(self, tasks: Sequence[Task]) -> list[Outcome]:
        """Longest first, and whoever is free takes the next: then all are done at about the same time."""
        errands = [Errand(places, [tasks[place] for place in places]) for places in self.errands(tasks)]
        waiting = deque(sorted(errands, key=lambda errand: -examples(errand.tasks)))
        outcomes: dict[int, Outcome] = {}
        while waiting or self._busy:
            self._feed(waiting)
            answered = list(self._collect(waiting))
            self._feed(waiting)  # before the answers are read, which takes its time
            for errand in answered:
                outcomes |= zip(errand.places, self._outcomes(errand), strict=True)
        assert self._shelf is not None
        self._shelf.clear()
        return [outcomes[place] for place in range(len(tasks))]

    def _feed(self, waiting: deque[Errand]) -> None:
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
        work, rules, cells = self.local_work, self._rules, self._shelf.cells
        self.work.module.train()
        return lambda order: _trained(work, rules, cells, order)

    def _collect(self, waiting: deque[Errand]) -> Iterator[Errand]:
        """Wait for answers; what a worker had that has died waits again."""
        ready = wait([worker.channel for worker in self._busy])
        for worker in [worker for worker in self._busy if worker.channel in ready]:
            errand = self._busy.pop(worker)
            try:
                errand.answers = worker.receive()
            except EOFError:
                self._again(worker, errand, waiting)
                continue
            yield errand

    def _order(self, errand: Errand) -> Order:
        errand.lent, errand.cells = [], []
        return Order([self._parts(errand, Piece.of(task)) for task in errand.tasks], plan(errand.tasks))

    def _parts(self, errand: Errand, piece: Piece) -> Parts:
        assert self._shelf is not None
        shelf, rule, job = self._shelf, piece.rule, piece.job
        x, extra = shelf.lend(job.x), {name: shelf.lend(value) for name, value in job.extra.items()}
        errand.lent += [x, *extra.values()]
        cells = [shelf.take() for _ in range(len(piece.kept) + 1 + len(rule.sends) + len(rule.keeps))]
        errand.cells += cells
        return Parts(
            rule=self._rules.index(rule),
            job={f.name: getattr(job, f.name) for f in fields(job) if f.name not in ("x", "extra")},
            x=x,
            extra=extra,
            kept={n: shelf.cells.put(v, cell) for (n, v), cell in zip(piece.kept.items(), cells, strict=False)},
            cells=cells[len(piece.kept) :],
        )

    def _outcomes(self, errand: Errand) -> list[Outcome]:
        assert self._shelf is not None
        copy, outcomes = self._shelf.cells.copy, []
        for task, answer in zip(errand.tasks, errand.answers, strict=True):
            sent, kept = ({name: copy(p) for name, p in part.items()} for part in (answer.sent, answer.kept))
            outcomes.append(outcome(task, answer.finite, copy(answer.delta), sent, kept))
        self._return(errand)
        return outcomes

    def _return(self, errand: Errand) -> None:
        """The errand needs its memory no more."""
        assert self._shelf is not None
        for parcel in errand.lent:
            self._shelf.back(parcel)
        for cell in errand.cells:
            self._shelf.give(cell)

    def _again(self, worker: Worker, errand: Errand, waiting: deque[Errand]) -> None:
        """A worker has died: try its job once more, with another one."""
        self._discard(worker)
        self._return(errand)
        errand.tries += 1
        if errand.tries >= TRIES:
            _, job = errand.tasks[0]
            raise OffbeatError(
                f"a worker process has ended with status {worker.exitcode} while it trained client {job.client} from "
                f"version {job.version}, and so had one before it.  -9 is usually a lack of memory: then use fewer "
                "cores (taskset), or executor = 'sequential'."
            )
        waiting.appendleft(errand)

    def _discard(self, worker: Worker) -> None:
        worker.kill()
        self._workers.remove(worker)


class Processes(Crew):
    """Each job alone, by the very function that `sequential` uses: for models that gain nothing from being stacked."""

    def __init__(self, work: Work) -> None:
        super().__init__(work, together=1)
        self.bulk = self.sample = min(self.bulk, AHEAD * self.most)

    def errands(self, tasks: Sequence[Task]) -> list[list[int]]:
        return [[place] for place in range(len(tasks))]

    def local_work(self, pieces: Sequence[Piece], plan: Plan) -> Iterable[Trained]:
        return one_by_one(self.work, pieces, plan)


class Stacks(Crew):
    """A stack a worker, by what `vectorised` does in one process: for small models."""

    def __init__(self, work: Work) -> None:
        self._inner = Vectorised(work)
        super().__init__(work, together=self._inner.rows)
        self.sample = min(self.bulk, 2 * self.together * self.most)

    def errands(self, tasks: Sequence[Task]) -> list[list[int]]:
        return evenly(tasks, self.together, self.most)

    def local_work(self, pieces: Sequence[Piece], plan: Plan) -> Iterable[Trained]:
        return self._inner.local_work(pieces, plan)


def _trained(work: LocalWork, rules: Sequence[ClientRule], cells: Cells, order: Order) -> list[Answer]:
    """In the worker: from an order to its answers."""
    view, pieces = cells.view, []
    for parts in order.pieces:
        job = Job(**parts.job, x=view(parts.x), extra={name: view(parcel) for name, parcel in parts.extra.items()})
        pieces.append(Piece(rules[parts.rule], job, {name: view(parcel) for name, parcel in parts.kept.items()}))
    trained = zip(order.pieces, work(pieces, order.plan), strict=True)
    return [_answer(cells, parts.cells, *result) for parts, result in trained]


def _answer(cells: Cells, room: Sequence[int | None], finite: bool, delta: Tensor, sent: State, kept: State) -> Answer:
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
